"""Meters: sums over a pass that stay on the device until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from trainer.tasks.metric import Metric

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
        import torch

        self._task, self._metrics = task, tuple(metrics)
        self._means = [metric for metric in metrics if not metric.whole and (keep or len(metric.columns) > 1)]
        self._whole = [metric for metric in metrics if metric.whole and keep]
        self._kept: list[dict[str, Tensor]] | None = [] if keep else None
        # Each times the samples. In double precision every count is exact.
        self._names = ("loss", *(metric.name for metric in self._means))
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)
        self._loss, *self._totals = self._sums.unbind()
        self._left_out: Tensor | None = None  # number of samples, on the device
        self.samples = 0

    def update(
        self,
        loss: Tensor,
        outputs: Tensor,
        targets: Tensor,
        indices: Tensor | None = None,
        *,
        valid: Tensor | None = None,
    ) -> None:
        """Add a batch; keep nothing of it but copies.

        Args:
            loss: () mean over the batch.
            outputs: (N, ...), output of the model.
            targets: (N, ...), targets of the batch.
            indices: (N,) indices into the split's files.
            valid: () bool, on the device: whether the sums count the batch; None: they do.
        """
        import torch

        with torch.no_grad():
            count, before = len(targets), self._sums if valid is None else self._sums.clone()
            outputs, targets = outputs.float(), self._task.unmixed(targets)
            self._loss.add_(loss, alpha=count)
            for metric, total in zip(self._means, self._totals, strict=True):
                metric.add_to(total, outputs, targets)
            if self._kept is not None:
                known = targets.new_full((count,), -1, dtype=torch.int64) if indices is None else indices
                kept = {"index": known, "target": targets, **self._task.keep(outputs, targets)}
                kept |= {"output": outputs} if self._whole else {}
                self._kept.append({name: value.clone() for name, value in kept.items()})
            self.samples += count
            if valid is not None:
                self._sums.copy_(torch.where(valid, self._sums, before))
                if self._left_out is None:
                    self._left_out = torch.zeros(1, dtype=torch.float64, device=self._sums.device)
                self._left_out.add_(~valid, alpha=count)

    def compute(self) -> dict[str, float]:
        """Return the means so far, NaN before the first batch: one transfer, which waits."""
        import torch

        parts = (self._sums,) if self._left_out is None else (self._sums, self._left_out)
        sums = torch.cat(parts).tolist()
        samples = self.samples - (0 if self._left_out is None else sums.pop())
        loss, *more = (value / samples if samples else math.nan for value in sums)
        return {"loss": loss} | {m.name: m.finish(mean) for m, mean in zip(self._means, more, strict=True)}

    def scores(self) -> dict[str, float]:
        """Return the values at the end of a pass, also those that need all samples at once."""
        kept = self._together()
        whole = {m.name: m.of_all(kept["output"], kept["target"]) if kept else math.nan for m in self._whole}
        return self.compute() | whole

    def kept(self) -> Samples | None:
        """Return the predictions for each sample so far; None before the first batch."""
        names, kept = [field.name for field in fields(self._task.samples)], self._together()
        return self._task.samples(**{name: kept[name] for name in names}) if kept else None

    def _together(self) -> dict[str, Tensor]:
        import torch

        kept = self._kept or [{}]
        return {name: torch.cat([batch[name] for batch in kept]).cpu() for name in kept[0]}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums with their names."""
        state = {"samples": self.samples, "names": self._names, "sums": self._sums.clone()}
        return state if self._left_out is None else state | {"left_out": self._left_out.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; metrics that were not measured are NaN."""
        import torch

        names = state.get("names", self._names)  # up to 0.9.7 without names, in the order of the tasks' own metrics
        sums = dict(zip(names, state["sums"].tolist(), strict=False))
        self._sums.copy_(torch.tensor([sums.get(name, math.nan) for name in self._names], dtype=torch.float64))
        self.samples = state["samples"]
        if "left_out" in state:
            self._left_out = state["left_out"].to(self._sums.device, copy=True)

    def merged(self, parts: Sequence[dict[str, Any]]) -> Meter:
        """Return a meter of everything that several meters of the same kind have measured, in that order.

        Args:
            parts: what `parts` of each returned.
        """
        import torch

        whole = Meter(self._task, self._metrics, self._sums.device, keep=self._kept is not None)
        states = [part["state"] for part in parts]
        total: dict[str, Any] = states[0] | {"samples": sum(state["samples"] for state in states)}
        for name in ("sums", "left_out"):
            if found := [state[name] for state in states if name in state]:
                total[name] = torch.stack(found).sum(dim=0)
        whole.load_state_dict(total)
        if whole._kept is not None:
            whole._kept = [batch for part in parts for batch in part["kept"]]
        return whole

    def parts(self) -> dict[str, Any]:
        """Return everything measured, on the CPU, for `merged`."""
        kept = [{name: value.cpu() for name, value in batch.items()} for batch in self._kept or ()]
        state = {name: value.cpu() if hasattr(value, "cpu") else value for name, value in self.state_dict().items()}
        return {"state": state, "kept": kept}
