"""Batch ops, which mix each sample and its target with other samples of the batch in the same proportions."""

import numpy as np

from augment.params import Number, Range, Size
from augment.recipe.op import batch
from augment.recipe.op_kinds import Array, Mask
from augment.support.lazy_torch import Tensor, torch


def _beta(uniform: Array, alpha: float) -> Array:
    """Map uniform numbers in [0, 1) to draws from Beta(alpha, alpha) with the inverse distribution function."""
    from scipy.special import betaincinv  # takes a quarter of a second to import

    return np.asarray(betaincinv(alpha, alpha, uniform), np.float64)


def _full_parts(size: Size, count: int, samples: int) -> Array:
    """Return `parts`, (count, samples, 7), in which each sample fills the whole image."""
    return np.tile([0.0, 0, size.width, size.height, 1, 0, 0], (count, samples, 1))


def _mixup_shares(size: Size, uniform: Array, alpha: float) -> dict[str, Array]:
    return {"share": _beta(uniform, alpha).astype(np.float32)}


def _mixup_parts(size: Size, share: Array) -> Array:
    return _full_parts(size, len(share), 2) * np.stack([share <= 1, share < 1], axis=1)[..., None]


@batch(
    prepare=_mixup_shares,
    parts=_mixup_parts,
    blends=True,
    neutral={"uniform": 1.0},
    uniforms=("uniform",),
    writes=False,
    alpha=Number(
        default=0.4, within=(0, 100), above=0, doc="parameter of Beta(alpha, alpha), the distribution of the share"
    ),
)
def mixup(images: Tensor, partners: Tensor, share: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Blend each image and its target with another sample of its batch (Zhang et al. 2018)."""
    return partners.lerp(images, share[:, None, None, None].to(images.dtype)), share


def _interval_mask(side: int, center: Array, length: Array) -> Mask:
    """Return which pixels of a side lie in an interval, (N, side). `center` and `length` are shares of the side."""
    half = side * length / 2
    start, end = (np.clip(np.rint(side * center + sign * half), 0, side)[:, None] for sign in (-1, 1))
    pixel = np.arange(side)
    return (pixel >= start) & (pixel < end)


def _cutmix_rectangles(size: Size, uniform: Array, x: Array, y: Array, alpha: float) -> dict[str, Array]:
    """Return the columns, (N, width), and the rows, (N, height), of rectangles, and the share outside them."""
    height, width = size
    length = np.sqrt(1 - _beta(uniform, alpha))  # the rectangle's share of each side
    across, down = _interval_mask(width, x, length), _interval_mask(height, y, length)
    share = 1 - np.count_nonzero(across, axis=1) * np.count_nonzero(down, axis=1) / (height * width)
    return {"across": across, "down": down, "share": share.astype(np.float32)}


def _cutmix_parts(size: Size, across: Mask, down: Mask, share: Array) -> Array:
    parts = _full_parts(size, len(share), 2)
    starts = np.stack([np.argmax(across, axis=1), np.argmax(down, axis=1)], axis=1)
    sides = np.stack([np.sum(across, axis=1), np.sum(down, axis=1)], axis=1)
    parts[:, 1, :4] = np.concatenate([starts, starts + sides], axis=1)
    return parts


@batch(
    prepare=_cutmix_rectangles,
    parts=_cutmix_parts,
    neutral={"uniform": 1.0},
    uniforms=("uniform", "x", "y"),
    writes=False,
    alpha=Number(
        default=1.0, within=(0, 100), above=0, doc="parameter of Beta(alpha, alpha), the distribution of the share"
    ),
)
def cutmix(
    images: Tensor, partners: Tensor, across: Tensor, down: Tensor, share: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Paste a rectangle of another image of the batch and mix the targets by area (Yun et al. 2019)."""
    return torch.where(across[:, None, None, :] & down[:, None, :, None], partners, images), share


def _mosaic_tiles(size: Size, x: Array, y: Array) -> dict[str, Array]:
    """Return the tiles as `parts`, (N, 4, 7), and their shares of the image's area, (N, 4)."""
    (height, width), tiles = size, _full_parts(size, len(x), 4)
    column, row = (np.clip(np.rint(side * at), 1, side) for side, at in ((width, x), (height, y)))
    tiles[:, ::2, 2] = tiles[:, 1::2, 0] = column[:, None]
    tiles[:, :2, 3] = tiles[:, 2:, 1] = row[:, None]
    sides = tiles[..., 2:4] - tiles[..., :2]
    tiles[..., 4] = (sides / (width, height)).max(axis=-1)
    tiles[..., 5:] = (tiles[..., :2] + tiles[..., 2:4] - tiles[..., 4:5] * (width, height)) / 2
    return {"tiles": tiles, "share": (sides.prod(axis=-1) / (height * width)).astype(np.float32)}


@batch(
    prepare=_mosaic_tiles,
    parts=lambda size, tiles, share: tiles,
    neutral={"x": 1.0, "y": 1.0},
    writes=False,
    center_range=Range(
        default=(0.3, 0.7),
        within=(0, 1),
        draws=("x", "y"),
        doc="meeting point of the tiles, as shares of the width and height",
    ),
)
def mosaic(images: Tensor, partners: Tensor, tiles: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Tile four images of the batch and mix their targets by area (Bochkovskiy et al. 2020).

    The top left tile shows the image itself. The other tiles show the next three images of the batch. Each image is
    scaled to cover its tile, and its overhang is cut off equally on both sides.
    """
    (count, _, height, width), device = images.shape, images.device
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)
    right, below = x >= tiles[:, :1, 2], y >= tiles[:, :1, 3]
    tile = right[:, None, :] + 2 * below[:, :, None]
    own = torch.arange(count, device=device)[:, None, None]
    scale, left, top = (tiles[own, tile, column] for column in (4, 5, 6))
    u = ((x + 0.5 - left) / scale - 0.5).clamp(0, width - 1)
    v = ((y[:, None] + 0.5 - top) / scale - 0.5).clamp(0, height - 1)
    column, row = u.long(), v.long()
    # The pixels of all images, then the pixels of all partners. Tile k > 0 shows the partner of sample own + k - 1.
    pixels = torch.cat([part.permute(0, 2, 3, 1).reshape(-1, images.shape[1]) for part in (images, partners)])
    first = torch.where(tile == 0, own, count + (own + tile - 1) % count) * (height * width)
    after = (column + 1).clamp(max=width - 1)
    across, down = ((at - low)[..., None].to(images.dtype) for at, low in ((u, column), (v, row)))
    rows = (first + width * at for at in (row, (row + 1).clamp(max=height - 1)))
    upper, lower = (pixels[at + column].lerp(pixels[at + after], across) for at in rows)
    return upper.lerp(lower, down).permute(0, 3, 1, 2), share
