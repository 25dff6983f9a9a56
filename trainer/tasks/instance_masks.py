"""Instance masks of detectors: their pixels in an image, and their overlaps with true masks.

A detector with masks, such as Mask R-CNN, returns a small grid of probabilities for each object. The grid covers the
object's box. The output row of an object contains its box, label and score, and then this grid.
"""

import math
from collections.abc import Mapping

from augment.support.lazy_torch import F, Tensor, torch

COLUMNS = 6  # columns before the grid: left, top, right, bottom, label and score


def object_masks(rows: Tensor, frame: Tensor, window: tuple[int, int, int, int]) -> Tensor:
    """Return the masks of objects in a window of an image, (D, height, width) bool, without synchronizing.

    Args:
        rows: (D, 6 + M * M), the detector's output.
        frame: (3, 3) matrix from pixels of the image to output coordinates.
        window: left, top, right and bottom edges of the window, in pixels of the image.
    """
    left, top, right, bottom = window
    side = math.isqrt(rows.shape[1] - COLUMNS)
    grids = rows[:, COLUMNS:].reshape(-1, 1, side, side).float()
    matrix = frame.to(device=rows.device, dtype=torch.float64)
    x = torch.arange(left, right, dtype=torch.float64, device=rows.device)
    y = torch.arange(top, bottom, dtype=torch.float64, device=rows.device)[:, None]
    across, down, w = (row[0] * x + row[1] * y + row[2] for row in matrix)
    # torchvision's training targets place pixel centers at integer coordinates, so no shift by half a pixel is needed.
    points = torch.stack([across / w, down / w], dim=-1).float()
    low, high = torch.split(rows[:, None, None, :4].float(), 2, dim=-1)
    shares = (points - low).div_((high - low).clamp(min=1e-6))
    return F.grid_sample(grids, shares.mul_(2).sub_(1), align_corners=False)[:, 0] >= 0.5


def mask_overlaps(rows: Tensor, target: Mapping[str, Tensor], size: tuple[int, int]) -> Tensor:
    """Return the IoU of an image's true masks with its found masks, (K, D) float64. NaN: the target has no masks.

    As in COCO, the intersection with an ignored object, such as a crowd, is divided by the area of the found mask.

    Args:
        rows: (D, 6 + M * M), the detector's output.
        target: a target of the batch.
        size: height and width of the images in the batch.
    """
    ignored = (target["iscrowd"] | target["difficult"])[:, None]
    if "masks" not in target:
        return rows.new_full((len(ignored), len(rows)), math.nan, dtype=torch.float64)
    identity, true = torch.eye(3, device=rows.device), target["masks"].flatten(1).float()
    overlaps = []
    for part in torch.split(rows, 20):  # each mask is as large as the image, so few are expanded at once
        found = object_masks(part, identity, (0, 0, size[1], size[0])).flatten(1).float()
        shared = (true @ found.T).double()  # exact, because the factors are 0 and 1
        areas = found.sum(dim=1).double()
        union = areas + true.sum(dim=1, keepdim=True).double() - shared
        overlaps.append(shared / torch.where(ignored, areas, union).clamp(min=1))
    return torch.cat(overlaps, dim=1)
