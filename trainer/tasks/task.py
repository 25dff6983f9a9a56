"""A task: what a model predicts, and all that follows from it. A new task is one module with one registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from augment.data.targets.classes import CLASSES
from augment.data.targets.kind import Kind, Target
from augment.support.text import amount
from trainer.tasks.display import (
    PACE,
    Column,
    Evaluation,
    FigureData,
    Finding,
    MetricsRow,
    Section,
    Table,
    WrongSample,
)  # fmt: skip
from trainer.tasks.losses import LossFunction
from trainer.tasks.metrics import Meter, Samples
from trainer.tasks.settings import LossSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

S = TypeVar("S", bound=Samples)

# The value of `monitor` that stands for the task's own.
AUTO = "auto"


class Task(ABC, Generic[S]):
    """A kind of prediction. All hooks but the abstract ones have defaults.

    Attributes:
        name: name of the task, as `augment.data.dataset.Dataset` and checkpoints have it.
        kind: the kind of targets that it trains on.
        unit: what one output of the model stands for, as "class".
        units: the plural.
        monitor: key of the metrics row whose best value makes the best epoch, unless a callback monitors another one.
        score: the value that curves and the report show besides the loss, as the row has it behind train_ and val_.
        score_title: the score in words.
        share: whether the score is a share, in [0, 1].
        metrics: what is measured, as columns of tables; callbacks may monitor these keys.
        meter: what measures a pass.
        samples: what the meter keeps of each sample, and best.pt of the best epoch: tensors by name.
        loss_settings: settings of the fit that have an effect with this task.
        resume_settings: settings of the fit that a resumed run must share with the saved one.
        ranked: whether a prediction is a list of probabilities, the highest first, or a value for each unit.
        top: number of units that a ranked prediction names by default; None: all.
        threshold: the lowest probability at which it names a unit by default; None: it names all.
        reads_folders: whether a folder of images for each class can be evaluated.
        figure_file: name of the figure of the best epoch; empty: there is none.
        mistakes_title: heading of the report's worst samples.
        mistakes_text: which ones these are, behind "Validation images".
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = CLASSES
    unit: ClassVar[str]
    units: ClassVar[str]
    monitor: ClassVar[str]
    score: ClassVar[str]
    score_title: ClassVar[str]
    share: ClassVar[bool] = True
    metrics: ClassVar[tuple[Column, ...]]
    meter: ClassVar[type[Meter[Any]]]
    samples: ClassVar[type[Samples]]
    loss_settings: ClassVar[tuple[str, ...]] = ()
    resume_settings: ClassVar[tuple[str, ...]] = ()
    ranked: ClassVar[bool] = True
    top: ClassVar[int | None] = None
    threshold: ClassVar[float | None] = None
    reads_folders: ClassVar[bool] = False
    figure_file: ClassVar[str] = ""
    mistakes_title: ClassVar[str] = "Most confidently wrong"
    mistakes_text: ClassVar[str] = "that the best epoch got wrong, most confident first"

    # --- training ---

    @abstractmethod
    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the losses of training and of validation.

        Args:
            fit: settings of the fit.
            network: the model, prepared or restored.
            device: the device of outputs and targets.
            weights: (K,) weights of the classes or labels in training; None: 1.
        """

    def prepare(self, network: nn.Module, fit: LossSettings, targets: Sequence[Target], names: Sequence[str]) -> str:
        """Adapt a new network to the targets of the train split; return a sentence for the log, or nothing."""
        return ""

    def restore(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Adapt a network to a saved state as `prepare` did, before the state is loaded."""

    def average(self, views: Sequence[tuple[float, Tensor]]) -> Tensor:
        """Return the average of outputs for several views of the same images, (N, ...) float32, with their weights."""
        import torch

        return torch.stack([weight * output for weight, output in views]).sum(dim=0)

    # --- predictions ---

    def activate(self, outputs: Tensor) -> Tensor:
        """Return what people read of outputs, (N, K) float32: probabilities, or values as they are."""
        return outputs

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return a sample's target in words.

        Args:
            target: the target as a plain number or list; samples may be mixed.
            names: names of the units; may be empty.
        """
        return self.kind.caption(target, names)

    # --- scores of a pass ---

    def per_class(self, samples: S, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the scores of each unit by their names."""
        return {}

    def evaluate(self, values: MetricsRow, samples: S, names: Sequence[str]) -> Evaluation:
        """Return the scores of a pass; `values` are those of the meter, as a metrics row has them."""
        per_class = self.per_class(samples, names)
        head = next(iter(per_class.values()), {})
        rows = [(name, *map(_cell, scores.values())) for name, scores in per_class.items()]
        images = len(samples.index)
        sentence = f"{', '.join(f'{key} {value:.4f}' for key, value in values.items())} ({amount(images, 'image')})"
        table = Table("", (self.unit, *head), rows)
        return Evaluation(images, values, per_class, table, sentence, self.figure(samples, names))

    def right_of(self, samples: S) -> tuple[int, int] | None:
        """Return how many samples are right and how many there are, where the score is their ratio."""
        return None

    def figure(self, samples: S, names: Sequence[str]) -> FigureData | None:
        """Return what to draw of the best epoch as `figure_file`."""
        return None

    def section(self, samples: S, names: Sequence[str]) -> Section:
        """Return the report's section about single units; without blocks it is left out."""
        table = self.evaluate({}, samples, names).table
        return Section((table,) if table.rows else ())

    def findings(self, samples: S, names: Sequence[str]) -> Iterator[Finding]:
        """Yield what the report says about a pass."""
        return iter(())

    def mistakes(self, samples: S, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the samples that the model gets wrong, the worst first."""
        return iter(())

    # --- derived ---

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of tables of epochs."""
        return (*self.metrics, *PACE)

    @property
    def monitored(self) -> tuple[str, ...]:
        """The keys of a metrics row that a callback may monitor, those of validation first."""
        return tuple(sorted((metric.key for metric in self.metrics), key=lambda key: key.startswith("train_")))

    def measured(self, number: int) -> tuple[Column, ...]:
        """Return what is measured with a number of classes, labels or numbers."""
        return tuple(metric for metric in self.metrics if number > metric.above)

    def count(self, number: int) -> str:
        """Return "1 class" or "10 classes"."""
        return amount(number, self.unit, self.units)


def _cell(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return "-" if value != value else f"{value:.4f}"
