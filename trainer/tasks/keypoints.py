"""Keypoints: a fixed number of keypoints in each image. Any model that returns a vector per image can predict them.

A model's outputs, (N, 2P), are x and y of each keypoint. The origin is the center of the image, and the unit is half of
its longer side. In an image of 320 x 160 px, x is within [-1, 1] and y within [-0.5, 0.5]. The outputs
therefore do not depend on the image size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.data.dataset import Split
from augment.data.targets.keypoints import KEYPOINTS, mirrored, missing_pairs
from augment.support.formatting import amount
from augment.support.lazy_torch import F, Tensor, nn, torch
from trainer.tasks.display import Block, Finding, WrongSample
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.metric import POSITIVE, SHARE, OutputSamples, mean_of_known, metric
from trainer.tasks.registry import register
from trainer.tasks.task import Task

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.batch import Batch

MIRRORED = "mirrored_points"  # the buffer with the index of each keypoint's counterpart in a mirror image
NEAR = 0.2  # largest error of a correct keypoint, as a share of the longer side of the box around the visible keypoints
_BETA = 0.05  # error at which the loss becomes linear instead of quadratic, in halves of the image's longer side


@metric("keypoints", title="PCK@.2", within=SHARE, whole=True)
def pck(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of visible keypoints that are correct (Yang and Ramanan 2013).

    A correct keypoint is off by at most a fifth of the longer side of the box around the image's visible keypoints. An
    image does not count if it has a single visible keypoint, or if all its visible keypoints have the same position.
    """
    _, relative = point_errors(outputs, targets)
    return _share_correct(relative)


@metric("keypoints", title="error", smaller=True, within=POSITIVE, whole=True)
def error(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean error of the visible keypoints, as a share of the image's longer side."""
    errors, _ = point_errors(outputs, targets)
    return mean_of_known(errors.double().flatten().tolist())


def _share_correct(relative: Tensor) -> float:
    """Return the share of relative errors that are at most `NEAR`, ignoring NaN. See `point_errors`."""
    return float((relative[~relative.isnan()] <= NEAR).double().mean())


def point_errors(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the error of each keypoint in two units, (N, P) each. The error of a keypoint that is not visible is NaN.

    The first result is a share of the image's longer side. The second result is a share of the longer side of the box
    around the image's visible keypoints, or NaN if that side is 0.
    """
    found, true, visible = outputs.reshape(len(outputs), -1, 2), targets[..., :2], targets[..., 2] > 0
    distances = (found - true).norm(dim=-1).masked_fill(~visible, math.nan)
    low = true.masked_fill(~visible[..., None], math.inf).amin(dim=1)
    high = true.masked_fill(~visible[..., None], -math.inf).amax(dim=1)
    side = (high - low).amax(dim=1, keepdim=True)
    return distances / 2, distances / side.masked_fill(side <= 0, math.nan)


@dataclass(frozen=True, eq=False)
class CoordinateSamples(OutputSamples):
    """Predicted coordinates of a pass."""

    frame: Tensor  # (N, 3, 3) float64, from pixels of the stored image to the coordinates of targets and outputs


class CoordinateTask(Task[CoordinateSamples]):
    """Base class of tasks whose outputs are coordinates in an image."""

    samples = CoordinateSamples

    def draw_coordinates(
        self, sides: tuple[Drawing, Drawing], target: Tensor, output: Tensor, matrix: Tensor
    ) -> Sequence[int]:
        """Draw a sample's target on the left image and its output on the right. Return the classes for the legend.

        `matrix` converts coordinates to image pixels.
        """
        raise NotImplementedError

    def shown_output(self, samples: CoordinateSamples, position: int, names: Sequence[str]) -> Tensor:
        """Return the part of a sample's output that `draw` shows."""
        return samples.output[position]

    def draw(
        self,
        image: Image.Image,
        matrix: NDArray[np.float64],
        samples: CoordinateSamples,
        position: int,
        names: Sequence[str],
    ) -> Image.Image:
        """Return the image twice, with the target on the left and the prediction on the right."""
        from augment.drawing.target_overlays import Drawing, with_legend

        # A wide result gets a gap in the middle. Its text stays readable when the result is shown at half size.
        scale, weight, gap = (max(1, self.thumbnail // max(image.size)), 2, 8) if self.panels > 1 else (1, 1, 0)
        sides = Drawing(np.asarray(image), scale, weight), Drawing(np.asarray(image), scale, weight)
        to_image = torch.from_numpy(matrix) @ samples.frame[position].inverse()
        output = self.shown_output(samples, position, names)
        labels = self.draw_coordinates(sides, samples.target[position], output, to_image)
        halves = np.pad(sides[0].pixels, ((0, 0), (0, gap), (0, 0)), constant_values=255), sides[1].pixels
        return Image.fromarray(
            with_legend(np.concatenate(halves, axis=1), [(label, names[label]) for label in labels], weight)
        )


def transform_points(points: Tensor, matrices: Tensor) -> Tensor:
    """Transform points, (N, K, 2), with a matrix for each image, (N, 3, 3). The result is float64."""
    ends = torch.cat([points.double(), points.new_ones(*points.shape[:-1], 1).double()], dim=-1)
    found = ends @ matrices.double().transpose(1, 2)
    return found[..., :2] / found[..., 2:]


@dataclass(frozen=True)
class PointLoss:
    """Smooth L1 of x and y (Girshick 2015, arXiv:1504.08083), a mean over the visible keypoints of a batch."""

    def weight_of(self, targets: Tensor) -> Tensor:
        """Return the number of visible keypoints, (), or a tiny number instead of 0, because it is a denominator."""
        return (targets[..., 2] > 0).sum().float().clamp(min=1e-6)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, (), of outputs, (N, 2P), and targets, (N, P, 3)."""
        visible = targets[..., 2:] > 0
        found = outputs.reshape(*visible.shape[:-1], 2)
        # A keypoint that is not visible may have any coordinates. Its error becomes 0.
        true = targets[..., :2].where(visible, found.detach())
        return F.smooth_l1_loss(found, true, beta=_BETA, reduction="sum") / visible.sum().clamp(min=1)


@register
class KeypointTask(CoordinateTask):
    """A fixed number of keypoints in each image. Targets are (N, P, 3): x, y and visibility."""

    name, kind = "keypoints", KEYPOINTS
    unit, units = "keypoint", "keypoints"
    monitor, score, score_title, unit_score = "val_pck", "pck", "Correct keypoints (PCK@.2)", "pck"
    loss_settings = ("loss", "loss_options")
    ranked = False
    mistakes_title, mistakes_text = "Largest errors", "with the largest errors in the best epoch"

    def outputs(self, names: int) -> int:
        return 2 * names

    def targets_of(self, batch: Batch) -> Tensor:
        """Return x and y in output coordinates, and visibility, (N, P, 3)."""
        (scale, _, left), (_, _, top), _ = _scaling(batch.images)
        x, y, visible = batch.targets.unbind(dim=-1)
        return torch.stack([x * scale + left, y * scale + top, visible], dim=-1)

    def frames_of(self, batch: Batch) -> Tensor | None:
        scaling = torch.tensor(_scaling(batch.images), dtype=torch.float64)
        return None if batch.frames is None else scaling @ batch.frames

    def prepare(self, network: nn.Module, fit: LossSettings, train: Split, names: Sequence[str]) -> str:
        """Register a buffer with the pairs of keypoints that swap in a mirror image."""
        pairs = getattr(train.kind, "flip_pairs", ())
        if pairs is None and (tta := getattr(fit, "tta", "none")) != "none":
            raise missing_pairs(names, f"fit.tta={tta}")
        # An empty buffer means that the pairs are unknown, see `unmirrored`.
        network.register_buffer(MIRRORED, torch.tensor([] if pairs is None else mirrored(len(names), pairs)).long())
        if pairs is None:
            return "which keypoints swap in mirror images is unknown"
        return f"{amount(len(pairs), 'pair')} of keypoints swap in mirror images"

    def restore(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        network.register_buffer(MIRRORED, state[MIRRORED].clone())

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return smooth L1 for validation, and for training unless `fit.loss` names a plugin's loss."""
        return PointLoss() if fit.loss is None else self.named_loss(fit), PointLoss()

    def example(self, names: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
        return super().example(names)[0], torch.ones(2, names, 3)

    def unmirrored(self, outputs: Tensor, network: nn.Module) -> Tensor:
        """Mirror the keypoints, and swap left and right keypoints."""
        if not len(network.get_buffer(MIRRORED)):
            raise missing_pairs((), "fit.tta=flip")
        x, y = outputs[:, 0::2], outputs[:, 1::2]
        return torch.stack([-x, y], dim=-1).index_select(1, network.get_buffer(MIRRORED)).flatten(1)

    def numbers(self, outputs: Tensor, frames: Tensor | None, names: Sequence[str]) -> tuple[list[str], Tensor]:
        """Return x and y of each keypoint in pixels of the images."""
        assert frames is not None
        found = transform_points(outputs.reshape(len(outputs), -1, 2), frames.inverse())
        return [f"{name}_{axis}" for name in names for axis in "xy"], found.flatten(1)

    def per_class(self, samples: CoordinateSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return PCK, mean error and number of images of each keypoint, over the images in which it is visible."""
        errors, relative = point_errors(samples.output, samples.target)
        points = {}
        for number, name in enumerate(names):
            known = errors[:, number][~errors[:, number].isnan()]
            error = float(known.double().mean())  # NaN for an empty tensor
            points[name] = {"pck": _share_correct(relative[:, number]), "error": error, "images": len(known)}
        return points

    def section(self, samples: CoordinateSamples, names: Sequence[str]) -> tuple[Block, ...]:
        return self.bars(
            self.per_class(samples, names),
            "Correct keypoints in the best epoch, worst first",
            ("correct (PCK@.2)", "mean error", "visible in"),
            lambda found: (f"{found['error']:.4f}", str(found["images"])),
            "The error of a correct keypoint is at most a fifth of the longer side of the box around the image's "
            "visible keypoints. The mean error is a share of the image's longer side.",
        )

    def findings(self, samples: CoordinateSamples, names: Sequence[str]) -> Iterator[Finding]:
        return self.worst(self.per_class(samples, names), "correct in")

    def draw_coordinates(
        self, sides: tuple[Drawing, Drawing], target: Tensor, output: Tensor, matrix: Tensor
    ) -> Sequence[int]:
        for side, points in zip(sides, (target[:, :2], output.reshape(-1, 2)), strict=True):
            at = torch.cat([transform_points(points[None], matrix[None])[0], target[:, 2:].double()], dim=1)
            side.points(at.numpy())
        return ()

    def mistakes(self, samples: CoordinateSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images by the mean error of their visible keypoints, the worst first."""
        errors, relative = point_errors(samples.output, samples.target)
        means = errors.nanmean(dim=1).nan_to_num(-1)
        for i in means.argsort(descending=True, stable=True).tolist():
            known = relative[i][~relative[i].isnan()]
            if means[i] >= 0:
                right = f"{int((known <= NEAR).sum())} of {len(known)} correct"
                yield WrongSample(i, self.caption(samples.target[i], names), f"{right}, mean error {means[i]:.3f}")


def _scaling(images: Tensor) -> list[list[float]]:
    """Return the matrix from pixels of images, (N, C, height, width), to output coordinates."""
    height, width = images.shape[2:]
    half = max(height, width) / 2
    return [[1 / half, 0.0, (0.5 - width / 2) / half], [0.0, 1 / half, (0.5 - height / 2) / half], [0.0, 0.0, 1.0]]
