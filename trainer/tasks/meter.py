"""Measure loss and metrics over a pass. Sums stay on the device until they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.metric import Samples, TaskMetric
from trainer.tasks.task import Task


class Meter:
    """Measures the loss and metrics of a pass. An update launches a few small kernels and never waits for the device.

    Args:
        task: the task.
        metrics: the metrics to measure in addition to the loss.
        device: the device of outputs and targets.
        keep: whether to keep the predictions, for `kept` and for metrics that need all samples.

    Attributes:
        samples: number of samples so far.
        weight: denominator of the mean loss that `compute` returned last.
    """

    def __init__(
        self, task: Task[Any], metrics: Sequence[TaskMetric], device: torch.device, *, keep: bool = False
    ) -> None:
        self._task, self._metrics = task, tuple(metrics)
        self._means = [metric for metric in metrics if not metric.whole and (keep or len(metric.columns) > 1)]
        self._whole = [metric for metric in metrics if metric.whole and keep]
        self._kept: list[dict[str, Tensor]] | None = [] if keep else None
        # Sums of loss x weight and of metric x samples. Double precision keeps counts exact.
        self._names = ("loss", *(metric.name for metric in self._means), "counted", "weight")
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)
        self._loss, *self._totals, self._counted, self._weights = self._sums.unbind()
        self.samples, self.weight = 0, 0.0

    def update(
        self,
        loss: Tensor,
        outputs: Tensor,
        targets: Tensor,
        indices: Tensor | None = None,
        *,
        frames: Tensor | None = None,
        weight: Tensor | int | None = None,
    ) -> None:
        """Add a batch. The meter copies the tensors that it keeps.

        Args:
            loss: () mean over the batch.
            outputs: (N, ...) outputs of the model.
            targets: (N, ...) targets, see `Task.targets_of`.
            indices: (N,) indices into the split's files.
            frames: (N, 3, 3), see `Task.frames_of`.
            weight: denominator of the loss, see `trainer.tasks.loss.weight_of`. Default: the number of samples.
        """
        count = len(targets)
        weight = count if weight is None else weight
        given, outputs, targets = targets, outputs.detach().float(), self._task.unmixed(targets)
        self._counted.add_(count)
        self._loss.add_(loss.detach().double() * weight)
        self._weights.add_(weight)
        for metric, total in zip(self._means, self._totals, strict=True):
            metric.add_to(total, outputs, targets)
        if self._kept is not None:
            kept = {"target": targets}
            kept["index"] = targets.new_full((count,), -1).long() if indices is None else indices
            if self._whole:
                kept["output"] = outputs
            if frames is not None:
                kept["frame"] = frames
            kept |= {**self._task.keep(outputs, targets), **self._task.keep_matches(outputs, given)}
            self._kept.append({name: value.clone() for name, value in kept.items()})
        self.samples += count

    def compute(self) -> dict[str, float]:
        """Return the means so far, or NaN before the first batch. This waits for the device."""
        loss, *sums, counted, self.weight = self._sums.tolist()
        means = [value / counted if counted else math.nan for value in sums]
        mean = loss / self.weight if self.weight else math.nan
        return {"loss": mean} | {m.name: m.finish(mean) for m, mean in zip(self._means, means, strict=True)}

    def scores(self) -> dict[str, float]:
        """Return the values at the end of a pass, including metrics that need all samples."""
        kept = self._joined()
        whole = {m.name: m.of_all(kept["output"], kept["target"]) if kept else math.nan for m in self._whole}
        means = self.compute()
        if self._task.own_loss:
            del means["loss"]
        return means | whole

    def kept(self) -> Samples | None:
        """Return the predictions so far, or None before the first batch."""
        kept, kind = self._joined(), self._task.samples
        return self._task.condensed(kind(**{field.name: kept[field.name] for field in fields(kind)})) if kept else None

    def _joined(self) -> dict[str, Tensor]:
        kept, together = self._kept or [{}], {}
        for name in kept[0]:
            parts = [batch[name] for batch in kept]
            if len({part.shape[1:2] for part in parts}) > 1:  # batches with different numbers of objects
                parts = [nn.utils.rnn.pad_sequence([*chain(*parts)], batch_first=True, padding_value=math.nan)]
            joined = torch.cat(parts)
            together[name] = (joined.sum(dim=0, keepdim=True) if name in self._task.sums else joined).cpu()
        return together

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "names": self._names, "sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Metrics without a saved sum become NaN."""
        sums = dict(zip(state["names"], state["sums"].tolist(), strict=True))
        self._sums.copy_(self._sums.new_tensor([sums.get(name, math.nan) for name in self._names]))
        self.samples = state["samples"]

    def merged(self, gather: Callable[[dict[str, Any]], Sequence[dict[str, Any]]]) -> Meter:
        """Return a meter with the measurements of all ranks.

        Args:
            gather: takes this rank's measurements, on the CPU, and returns all ranks' measurements in order.
        """
        parts = gather({"samples": self.samples, "sums": self._sums.cpu(), "kept": self._joined()})
        whole = Meter(self._task, self._metrics, self._sums.device, keep=self._kept is not None)
        whole.samples = sum(part["samples"] for part in parts)
        whole._sums.copy_(sum(part["sums"] for part in parts))
        whole._kept = None if self._kept is None else [part["kept"] for part in parts if part["kept"]]
        return whole
