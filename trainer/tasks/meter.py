"""Meters: sums over a pass that stay on the device until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from augment.support.lazy import F, Tensor, torch
from trainer.tasks.metric import Metric

if TYPE_CHECKING:
    from trainer.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Samples:
    """What a pass predicted for each sample, in the order seen, on the CPU; a task adds tensors of its own.

    Attributes:
        index: (N,) int64, index into the split's files; -1 where it is unknown.
        target: (N, ...), the target.
    """

    index: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)
class OutputSamples(Samples):
    """Outputs of a pass for each sample.

    Attributes:
        output: (N, K) float32, such as the logit of each label, or each number.
    """

    output: Tensor


class Meter:
    """Sums of a pass; updating takes a handful of small kernels and never waits for the device.

    Args:
        task: the task.
        metrics: what to measure besides the loss.
        device: the device of outputs and targets.
        keep: keep the predictions for each sample, for `kept` and the metrics that need all of them.

    Attributes:
        samples: number of samples so far.
    """

    def __init__(self, task: Task[Any], metrics: Sequence[Metric], device: torch.device, *, keep: bool = False) -> None:
        self._task, self._metrics = task, tuple(metrics)
        self._means = [metric for metric in metrics if not metric.whole and (keep or len(metric.columns) > 1)]
        self._whole = [metric for metric in metrics if metric.whole and keep]
        self._kept: list[dict[str, Tensor]] | None = [] if keep else None
        # All but the last times the samples. In double precision every count is exact.
        self._names = ("loss", *(metric.name for metric in self._means), "counted")
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)
        self._loss, *self._totals, self._counted = self._sums.unbind()
        self.samples = 0

    def update(
        self,
        loss: Tensor,
        outputs: Tensor,
        targets: Tensor,
        indices: Tensor | None = None,
        *,
        frames: Tensor | None = None,
    ) -> None:
        """Add a batch; keep nothing of it but copies.

        Args:
            loss: () mean over the batch.
            outputs: (N, ...), output of the model.
            targets: (N, ...), targets of the batch, see `Task.targets_of`.
            indices: (N,) indices into the split's files.
            frames: (N, 3, 3), see `Task.frames_of`.
        """
        count = len(targets)
        outputs, targets = outputs.detach().float(), self._task.unmixed(targets)
        self._counted.add_(count)
        self._loss.add_(loss.detach(), alpha=count)
        for metric, total in zip(self._means, self._totals, strict=True):
            metric.add_to(total, outputs, targets)
        if self._kept is not None:
            known = targets.new_full((count,), -1).long() if indices is None else indices
            kept = {"index": known, "target": targets} | ({"output": outputs} if self._whole else {})
            kept |= self._task.keep(outputs, targets)
            kept |= {} if frames is None else {"frame": frames}
            self._kept.append({name: value.clone() for name, value in kept.items()})
        self.samples += count

    def compute(self) -> dict[str, float]:
        """Return the means so far, NaN before the first batch: one transfer, which waits."""
        *sums, counted = self._sums.tolist()
        loss, *means = (value / counted if counted else math.nan for value in sums)
        return {"loss": loss} | {m.name: m.finish(mean) for m, mean in zip(self._means, means, strict=True)}

    def scores(self) -> dict[str, float]:
        """Return the values at the end of a pass, also those that need all samples at once."""
        kept = self._together()
        whole = {m.name: m.of_all(kept["output"], kept["target"]) if kept else math.nan for m in self._whole}
        means = self.compute()
        if self._task.own_loss:
            del means["loss"]
        return means | whole

    def kept(self) -> Samples | None:
        """Return the predictions for each sample so far; None before the first batch."""
        names, kept = [field.name for field in fields(self._task.samples)], self._together()
        return self._task.condensed(self._task.samples(**{name: kept[name] for name in names})) if kept else None

    def _together(self) -> dict[str, Tensor]:
        kept, together = self._kept or [{}], {}
        for name in kept[0]:
            joined = torch.cat(_alike([batch[name] for batch in kept]))
            together[name] = (joined.sum(dim=0, keepdim=True) if name in self._task.sums else joined).cpu()
        return together

    def state_dict(self) -> dict[str, Any]:
        """Return the sums with their names."""
        return {"samples": self.samples, "names": self._names, "sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; metrics that were not measured become NaN."""
        # Up to 0.9.7 sums had no names, but the order of the tasks' own metrics, and samples left out were counted.
        sums = dict(zip(state.get("names", self._names), state["sums"].tolist(), strict=False))
        sums.setdefault("counted", state["samples"] - float(state.get("left_out", 0)))
        self._sums.copy_(self._sums.new_tensor([sums.get(name, math.nan) for name in self._names]))
        self.samples = state["samples"]

    def merged(self, gather: Callable[[dict[str, Any]], Sequence[dict[str, Any]]]) -> Meter:
        """Return a meter of everything that this one and others of the same kind have measured.

        Args:
            gather: takes what this meter has measured, on the CPU, and returns that of all, in their order.
        """
        parts = gather({"samples": self.samples, "sums": self._sums.cpu(), "kept": self._together()})
        whole = Meter(self._task, self._metrics, self._sums.device, keep=self._kept is not None)
        whole.samples = sum(part["samples"] for part in parts)
        whole._sums.copy_(sum(part["sums"] for part in parts))
        whole._kept = None if self._kept is None else [part["kept"] for part in parts if part["kept"]]
        return whole


def _alike(parts: list[Tensor]) -> list[Tensor]:
    """Return tensors (N, K, ...) with the largest K of them; what is missing is NaN."""
    lengths = {part.shape[1] for part in parts if part.ndim > 2}
    if len(lengths) < 2:
        return parts
    rest = (0, 0) * (parts[0].ndim - 2)
    return [F.pad(part, (*rest, 0, max(lengths) - part.shape[1]), value=math.nan) for part in parts]
