"""What is measured during a pass: sums that stay on the device until somebody looks."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, SumMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional.classification import multiclass_confusion_matrix


class Meter:
    """Mean loss and accuracy of a pass; updating never waits for the device.

    Args:
        classes: number of classes.
        device: where outputs and targets are.
        keep: keep the predictions, for `confusion`.
    """

    def __init__(self, classes: int, device: torch.device, *, keep: bool = False) -> None:
        self._classes = classes
        self._kept: list[Tensor] | None = [] if keep else None
        self._loss = SumMetric(nan_strategy="disable").to(device)
        # Without validation of its arguments, which would copy them to the host.
        self._accuracy = MulticlassAccuracy(classes, average="micro", validate_args=False).to(device)
        self.samples = 0

    def update(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch.

        Args:
            loss: () mean over the batch.
            outputs: (N, classes).
            targets: (N,) class indices, or (N, classes) shares: what counts is the class with the largest.
        """
        count = len(targets)
        if targets.ndim == 2:
            targets = targets.argmax(dim=1)
        self._loss.update(loss.detach() * count)
        predictions = outputs.detach().argmax(dim=1)
        self._accuracy.update(predictions, targets)
        if self._kept is not None:
            self._kept.append(torch.stack([predictions, targets]))
        self.samples += count

    def compute(self) -> dict[str, float]:
        """Return loss and accuracy (in [0, 1]) so far, NaN before the first batch: one transfer, which waits."""
        if not self.samples:
            return {"loss": math.nan, "accuracy": math.nan}
        with warnings.catch_warnings():
            # Taken back from a checkpoint, the sums are there although this object has seen no batch.
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
            sums = (self._loss.compute() / self.samples, self._accuracy.compute())
            values = torch.stack([value.float() for value in sums]).tolist()
        return dict(zip(("loss", "accuracy"), values, strict=True))

    def confusion(self) -> Tensor:
        """Return the counts so far, (classes, classes) int64 on the CPU: rows are targets, columns predictions."""
        kept = self._kept or [torch.zeros(2, 0, dtype=torch.int64)]
        predictions, targets = torch.cat(kept, dim=1).cpu()
        counts: Tensor = multiclass_confusion_matrix(predictions, targets, self._classes)
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        states = []
        for metric in self._metrics():
            metric.persistent(True)
            states.append({name: value.clone() for name, value in metric.state_dict().items()})
        return {"samples": self.samples, "metrics": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.samples = state["samples"]
        for metric, values in zip(self._metrics(), state["metrics"], strict=True):
            metric.load_state_dict({name: value.to(metric.device) for name, value in values.items()})

    def _metrics(self) -> tuple[Metric, Metric]:
        return self._loss, self._accuracy


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); all of [0, 1] where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, z = right / total, 1.96
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return max((middle - half) / (1 + z * z / total), 0.0), min((middle + half) / (1 + z * z / total), 1.0)
