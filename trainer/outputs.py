"""What is measured of labels and numbers: sums during a pass, and what needs all pictures at its end."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from augment.dataset import Task
from trainer.metrics import Meter


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a pass said of each sample, in the order seen, on the CPU.

    Attributes:
        index: (N,) int64, place in the split's files; -1 where it is not known.
        target: (N, K) float32, labels or numbers.
        output: (N, K) float32, the logit of each label, or each number.
    """

    index: Tensor
    target: Tensor
    output: Tensor


@dataclass(frozen=True)
class LabelScore:
    """How well one label is told.

    Attributes:
        name: of the label.
        pictures: that have it.
        average_precision: area below precision over recall, a step for each score; NaN where no picture has the label.
        threshold: the probability from which on pictures are said to have it where F1 is highest; NaN likewise.
        f1: there, harmonic mean of precision and recall.
    """

    name: str
    pictures: int
    average_precision: float
    threshold: float
    f1: float


@dataclass(frozen=True)
class NumberScore:
    """How well one number is told.

    Attributes:
        name: of the number.
        mae: mean absolute error.
        rmse: root of the mean squared error.
        r2: coefficient of determination, 1 - the squared error over that of naming the pictures' mean: 1 is perfect, 0
            no better than the mean; NaN where the number is the same in all pictures.
    """

    name: str
    mae: float
    rmse: float
    r2: float


class OutputMeter:
    """Sums of a pass over labels or numbers; updating takes a handful of small kernels and never waits for the device.

    Args:
        task: multilabel or regress.
        count: labels, or numbers of a picture.
        device: where outputs and targets are.
        keep: keep what is said of each sample, for `scores` and `kept`.
    """

    def __init__(self, task: Task, count: int, device: torch.device, *, keep: bool = False) -> None:
        self._task = task
        self._count = count
        self._kept: list[tuple[Tensor, Tensor, Tensor]] | None = [] if keep else None
        # Of the loss, and of the errors and their squares, each a mean over a sample's numbers, times the samples.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.samples = 0

    @torch.no_grad()
    def update(self, loss: Tensor, outputs: Tensor, targets: Tensor, indices: Tensor | None = None) -> None:
        """Add a batch; nothing of it is kept but copies.

        Args:
            loss: () mean over the batch.
            outputs: (N, K).
            targets: (N, K).
            indices: (N,) places of the samples in the split's files.
        """
        count = len(targets)
        self._sums[0].add_(loss, alpha=count)
        if self._task == "regress":
            errors = outputs.float() - targets
            self._sums[1].add_(errors.abs().mean(), alpha=count)
            self._sums[2].add_(errors.square().mean(), alpha=count)
        if self._kept is not None:
            places = targets.new_full((count,), -1, dtype=torch.int64) if indices is None else indices.clone()
            self._kept.append((places, targets.clone(), outputs.float().clone()))
        self.samples += count

    def compute(self) -> dict[str, float]:
        """Return loss, and of numbers mae and rmse, so far, NaN before the first batch: one transfer, which waits."""
        loss, absolute, square = (value / self.samples if self.samples else math.nan for value in self._sums.tolist())
        return (
            {"loss": loss} if self._task == "multilabel" else {"loss": loss, "mae": absolute, "rmse": math.sqrt(square)}
        )

    def scores(self) -> dict[str, float]:
        """Return what `compute` does, and a mean: of labels map, of their average precisions; of numbers r2."""
        kept = self.kept()
        if self._task == "regress":
            return self.compute() | {"r2": mean_explained(kept)}
        return self.compute() | {"map": mean_average_precision(average_precisions(kept.output, kept.target))}

    def kept(self) -> Outputs:
        """Return what was said of each sample so far."""
        none = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, self._count), torch.zeros(0, self._count))
        index, target, output = (torch.cat(parts).cpu() for parts in zip(*(self._kept or [none]), strict=True))
        return Outputs(index, target, output)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return {"samples": self.samples, "sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.samples = state["samples"]
        self._sums.copy_(state["sums"])


def make_meter(task: Task, count: int, device: torch.device, *, keep: bool = False) -> Meter | OutputMeter:
    """Return the meter of a task: see `Meter` and `OutputMeter`."""
    return Meter(count, device, keep=keep) if task == "classify" else OutputMeter(task, count, device, keep=keep)


def average_precisions(outputs: Tensor, targets: Tensor) -> list[float]:
    """Return the average precision of each label, NaN where no picture has it.

    Args:
        outputs: (N, K) logits.
        targets: (N, K), 0 or 1.
    """
    # Takes seconds to import, for it brings torchvision along.
    from torchmetrics.functional.classification import binary_average_precision

    # In double precision, where neither two logits nor two probabilities near 1 become one.
    scores = outputs.double().sigmoid()
    having = targets > 0.5
    return [
        float(binary_average_precision(score, has.int())) if has.any() else math.nan
        for score, has in zip(scores.unbind(1), having.unbind(1), strict=True)
    ]


def mean_average_precision(precisions: list[float]) -> float:
    """Return the mean over the labels that some picture has; NaN if there is none."""
    known = [value for value in precisions if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def label_scores(outputs: Outputs, names: tuple[str, ...]) -> list[LabelScore]:
    """Return how well each label is told, in their order.

    Args:
        outputs: of a pass.
        names: of the labels.
    """
    precisions = average_precisions(outputs.output, outputs.target)
    scores, having = outputs.output.double().sigmoid(), outputs.target > 0.5
    return [
        LabelScore(name, int(has.sum()), precision, *best_threshold(score, has))
        for name, precision, score, has in zip(names, precisions, scores.unbind(1), having.unbind(1), strict=True)
    ]


def best_threshold(scores: Tensor, having: Tensor) -> tuple[float, float]:
    """Return the score from which on to say yes so that F1 is highest, and that F1; NaN and 0 if nobody has the label.

    Args:
        scores: (N,).
        having: (N,) bool.
    """
    total = int(having.sum())
    if not total:
        return math.nan, 0.0
    order = scores.argsort(descending=True)
    ranked, right = scores[order], having[order].cumsum(0)
    # Pictures of one score are said yes to all together: the last of them counts.
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])
    f1 = torch.where(last, 2 * right / (torch.arange(1, len(ranked) + 1) + total), 0.0)
    best = int(f1.argmax())
    return float(ranked[best]), float(f1[best])


def number_scores(outputs: Outputs, names: tuple[str, ...]) -> list[NumberScore]:
    """Return how well each number is told, in their order.

    Args:
        outputs: of a pass.
        names: of the numbers.
    """
    errors = (outputs.output - outputs.target).double()
    square, variance = errors.square().mean(0), outputs.target.double().var(0, correction=0)
    explained = torch.where(variance > 0, 1 - square / variance, math.nan)
    values = (errors.abs().mean(0), square.sqrt(), explained)
    return [NumberScore(name, *told) for name, *told in zip(names, *(value.tolist() for value in values), strict=True)]


def mean_explained(outputs: Outputs) -> float:
    """Return the mean R2 of the numbers that are not the same in all pictures; NaN if there is none."""
    samples, count = outputs.target.shape
    scores = number_scores(outputs, ("",) * count) if samples else []
    known = [score.r2 for score in scores if not math.isnan(score.r2)]
    return sum(known) / len(known) if known else math.nan
