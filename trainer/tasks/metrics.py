"""Meters: sums over a pass that stay on the device until somebody reads them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
    """Labels or numbers that a pass predicted for each sample.

    Attributes:
        target: (N, K) float32, labels or numbers.
        output: (N, K) float32, the logit of each label, or each number.
    """

    output: Tensor


S = TypeVar("S", bound=Samples)


class Meter(ABC, Generic[S]):
    """Sums of a pass; updating takes a handful of small kernels and never waits for the device.

    Args:
        count: number of classes, labels or numbers.
        device: the device of outputs and targets.
        keep: keep the predictions for each sample, for `kept` and `scores`.

    Attributes:
        sums: number of sums besides that of the loss.
        samples: number of samples so far.
    """

    sums: int = 0

    def __init__(self, count: int, device: torch.device, *, keep: bool = False) -> None:
        import torch

        self._count = count
        self._kept: list[tuple[Tensor, ...]] | None = [] if keep else None
        # Of the loss times the samples, then of the task's own. In double precision every count is exact.
        self._sums = torch.zeros(1 + self.sums, dtype=torch.float64, device=device)
        self._loss, *self._more = self._sums.unbind()
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
            self._loss.add_(loss, alpha=count)
            measured = self._measure(outputs, targets)
            if self._kept is not None:
                known = targets.new_full((count,), -1, dtype=torch.int64) if indices is None else indices.clone()
                self._kept.append((known, *self._keep(outputs, *measured)))
            self.samples += count
            if valid is not None:
                self._sums.copy_(torch.where(valid, self._sums, before))
                if self._left_out is None:
                    self._left_out = torch.zeros(1, dtype=torch.float64, device=self._sums.device)
                self._left_out.add_(~valid, alpha=count)

    def compute(self) -> dict[str, float]:
        """Return the values so far, NaN before the first batch: one transfer, which waits."""
        import torch

        parts = (self._sums,) if self._left_out is None else (self._sums, self._left_out)
        sums = torch.cat(parts).tolist()
        samples = self.samples - (0 if self._left_out is None else sums.pop())
        loss, *more = (value / samples if samples else math.nan for value in sums)
        return {"loss": loss} | self._named(more)

    def scores(self) -> dict[str, float]:
        """Return the values at the end of a pass, also those that need all samples at once."""
        return self.compute()

    def kept(self) -> S:
        """Return the predictions for each sample so far."""
        import torch

        nothing = self._nothing()
        if not self._kept:
            return nothing
        return type(nothing)(*(torch.cat(parts).cpu() for parts in zip(*self._kept, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        state = {"samples": self.samples, "sums": self._sums.clone()}
        return state if self._left_out is None else state | {"left_out": self._left_out.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.samples = state["samples"]
        self._sums.copy_(state["sums"])
        if "left_out" in state:
            self._left_out = state["left_out"].to(self._sums.device, copy=True)

    def parts(self) -> dict[str, Any]:
        """Return everything measured, on the CPU, for `merge`."""
        kept = None if self._kept is None else [tuple(value.cpu() for value in part) for part in self._kept]
        return {"state": {name: _on_cpu(value) for name, value in self.state_dict().items()}, "kept": kept}

    def merge(self, parts: Sequence[dict[str, Any]]) -> None:
        """Become the meter of everything that several meters of the same kind have measured, in that order."""
        import torch

        states = [part["state"] for part in parts]
        total: dict[str, Any] = {"samples": sum(state["samples"] for state in states)}
        for name in ("sums", "left_out"):
            if found := [state[name] for state in states if name in state]:
                total[name] = torch.stack(found).sum(dim=0)
        self.load_state_dict(total)
        if self._kept is not None:
            self._kept = [batch for part in parts for batch in part["kept"]]

    @abstractmethod
    def _measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Add a batch to the sums in `self._more`; return what `_keep` needs besides the outputs."""

    @abstractmethod
    def _keep(self, outputs: Tensor, *measured: Tensor) -> tuple[Tensor, ...]:
        """Return copies of what is kept for each sample of a batch, the target first."""

    @abstractmethod
    def _nothing(self) -> S:
        """Return what is kept of no samples."""

    def _named(self, means: list[float]) -> dict[str, float]:
        """Return the means of the task's own sums by name."""
        return {}


def _on_cpu(value: Any) -> Any:
    return value.cpu() if hasattr(value, "cpu") else value


class OutputMeter(Meter[OutputSamples]):
    """Sums of a pass over labels or numbers."""

    def _measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        return (targets,)

    def _keep(self, outputs: Tensor, *measured: Tensor) -> tuple[Tensor, ...]:
        return measured[0].clone(), outputs.float().clone()

    def _nothing(self) -> OutputSamples:
        import torch

        empty = torch.zeros(0, self._count)
        return OutputSamples(torch.zeros(0, dtype=torch.int64), empty, empty)


def mean_of_known(values: list[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Return the 95% interval of a share (Wilson 1927); all of [0, 1] where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, z = right / total, 1.96
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return max((middle - half) / (1 + z * z / total), 0.0), min((middle + half) / (1 + z * z / total), 1.0)
