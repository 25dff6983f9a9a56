"""What is measured during a pass: sums that stay on the device until somebody looks."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a pass said of each sample, in the order seen, on the CPU.

    Attributes:
        index: (N,) int64, place in the split's files; -1 where it is not known.
        target: (N,) int64 class.
        prediction: (N,) int64 class.
        confidence: (N,) float32, the probability that the model gives its prediction.
        target_confidence: (N,) float32, the probability that it gives the target.
    """

    index: Tensor
    target: Tensor
    prediction: Tensor
    confidence: Tensor
    target_confidence: Tensor


class Meter:
    """Mean loss and accuracy of a pass; updating takes a handful of small kernels and never waits for the device.

    Args:
        classes: number of classes.
        device: where outputs and targets are.
        keep: keep what is said of each sample, for `confusion` and `kept`.
    """

    def __init__(self, classes: int, device: torch.device, *, keep: bool = False) -> None:
        self._classes = classes
        self._whole: list[Tensor] | None = [] if keep else None
        self._shares: list[Tensor] = []
        # Of the loss times the samples, and of right predictions. In double precision every count is exact.
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._loss, self._right = self._sums.unbind()
        self.samples = 0

    @torch.no_grad()
    def update(self, loss: Tensor, outputs: Tensor, targets: Tensor, indices: Tensor | None = None) -> None:
        """Add a batch; nothing of it is kept but copies.

        Args:
            loss: () mean over the batch.
            outputs: (N, classes).
            targets: (N,) class indices, or (N, classes) shares: what counts is the class with the largest.
            indices: (N,) places of the samples in the split's files.
        """
        count = len(targets)
        if targets.ndim == 2:
            targets = targets.argmax(dim=1)
        predictions = outputs.argmax(dim=1)
        self._loss.add_(loss, alpha=count)
        self._right.add_((predictions == targets).sum())
        if self._whole is not None:
            shares = outputs.float().softmax(dim=1)
            pair = torch.stack([predictions, targets], dim=1)
            places = torch.full_like(targets, -1) if indices is None else indices
            self._whole.append(torch.stack([places, targets, predictions]))
            self._shares.append(shares.gather(1, pair).T)
        self.samples += count

    def compute(self) -> dict[str, float]:
        """Return loss and accuracy (in [0, 1]) so far, NaN before the first batch: one transfer, which waits."""
        if not self.samples:
            return {"loss": math.nan, "accuracy": math.nan}
        loss, right = self._sums.tolist()
        return {"loss": loss / self.samples, "accuracy": right / self.samples}

    def scores(self) -> dict[str, float]:
        """Return what `compute` does, at the end of a pass."""
        return self.compute()

    def kept(self) -> Predictions:
        """Return what was said of each sample so far."""
        none = torch.zeros(3, 0, dtype=torch.int64), torch.zeros(2, 0)
        whole = torch.cat(self._whole or [none[0]], dim=1).cpu()
        shares = torch.cat(self._shares or [none[1]], dim=1).cpu()
        return Predictions(*whole.unbind(), *shares.unbind())

    def confusion(self) -> Tensor:
        """Return the counts so far, (classes, classes) int64 on the CPU: rows are targets, columns predictions."""
        # By torchmetrics it would be the same; importing that takes seconds, at the end of every run's first epoch.
        samples = self.kept()
        cells = samples.target * self._classes + samples.prediction
        return cells.bincount(minlength=self._classes**2).view(self._classes, self._classes)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return {"samples": self.samples, "sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.samples = state["samples"]
        self._sums.copy_(state["sums"])


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); all of [0, 1] where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, z = right / total, 1.96
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return max((middle - half) / (1 + z * z / total), 0.0), min((middle + half) / (1 + z * z / total), 1.0)
