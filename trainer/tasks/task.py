"""A task: what a model predicts, and all that follows from it. A new task is one module with one registration."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from augment.data.dataset import Split
from augment.data.targets.classification import CLASSES
from augment.data.targets.kind import Kind
from augment.support.formatting import amount, percent, plural
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.display import (
    Bar,
    BarChart,
    Bars,
    Block,
    Display,
    Evaluation,
    FigureData,
    Finding,
    Table,
    WrongSample,
)
from trainer.tasks.loss import LOSSES, LossFunction, LossSettings, NamedLoss, declared, loss_names, with_options
from trainer.tasks.metric import (
    METRICS,
    PACE,
    SHARE,
    Column,
    MetricsRow,
    OutputSamples,
    Samples,
    TaskMetric,
    columns_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from augment.pipeline.batch import Batch

S = TypeVar("S", bound=Samples)

# The value of `monitor` that stands for the task's own.
AUTO = "auto"

_SHOWN = 60  # classes, labels or numbers in a table on the terminal


class Task(Generic[S]):
    """A kind of prediction. Its hooks have defaults; metrics are declared for its `name`."""

    name: ClassVar[str]  # as `augment.data.dataset.Dataset` and checkpoints have it
    kind: ClassVar[Kind] = CLASSES  # the kind of targets that it trains on
    unit: ClassVar[str]  # what one output of the model stands for, as "class"
    units: ClassVar[str]  # the plural

    # The key of the metrics row whose best value makes the best epoch, unless a callback monitors another one; the
    # metric that curves and the report show besides the loss, also in words; and the score in `per_class` by which the
    # worst classes, labels or numbers are found, those with the lowest, if there is one.
    monitor: ClassVar[str]
    score: ClassVar[str]
    score_title: ClassVar[str]
    unit_score: ClassVar[str] = ""

    own_models: ClassVar[bool] = False  # whether it needs models of its own, see `trainer.models.base.Model.task`
    # Whether these get the targets, too, in training, and return their losses; then validation has none.
    own_loss: ClassVar[bool] = False
    views: ClassVar[tuple[str, ...]] = ("none", "flip")  # the test-time augmentations that it can average
    # What is kept of each sample in validation, and in best.pt of the best epoch: tensors by name.
    samples: ClassVar[type[Samples]] = OutputSamples
    sums: ClassVar[tuple[str, ...]] = ()  # those that are summed over the batches, not joined

    loss_type: ClassVar[type[NamedLoss]] = NamedLoss  # the sum of losses that `fit.loss` names; of none, the usual loss
    default_loss: ClassVar[str] = ""  # the loss that is named where `fit.loss` is not; empty: the usual one
    loss_settings: ClassVar[tuple[str, ...]] = ()  # settings of the fit that have an effect

    # Whether outputs and targets have a column for each unit, whose metrics can be measured alone, too.
    by_unit: ClassVar[bool] = False
    ranked: ClassVar[bool] = True  # whether a prediction is a list of probabilities, the highest first, or of values
    top: ClassVar[int | None] = None  # number of units that a ranked prediction names by default; None: all
    threshold: ClassVar[float | None] = None  # the lowest probability at which it does; None: it names all

    figure_file: ClassVar[str] = ""  # name of the figure of the best epoch; empty: there is none
    panels: ClassVar[int] = 1  # images side by side in what `draw` returns
    mistakes_title: ClassVar[str] = "Most confidently wrong"  # heading of the report's worst samples
    # Which ones these are, behind "Validation images".
    mistakes_text: ClassVar[str] = "that the best epoch got wrong, most confident first"

    # --- training ---

    def require(self) -> None:
        """Check that what the task needs is installed.

        Raises:
            UserError: a package is missing.
        """

    def outputs(self, names: int) -> int:
        """Return the number of a network's outputs for so many classes, labels, numbers or points."""
        return names

    def targets_of(self, batch: Batch) -> Any:
        """Return the targets of a batch as losses and metrics take them."""
        return batch.targets

    def frames_of(self, batch: Batch) -> Tensor | None:
        """Return the matrices from stored pixels to what outputs are in, (N, 3, 3); None where nobody asks for them."""
        return batch.frames

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the losses of training and of validation, by which any fits compare.

        Args:
            fit: settings of the fit.
            network: the model, prepared or restored.
            device: the device of outputs and targets.
            weights: (K,) weights of the classes or labels in training; None: 1.
        """
        usual = self.loss_type
        return usual(fit.label_smoothing, weights) if fit.loss is None else self.named_loss(fit, weights), usual()

    def named_loss(self, fit: LossSettings, weights: Tensor | None = None) -> NamedLoss:
        """Return the loss that `fit.loss` names, or the default loss; `weights` as in `make_losses`.

        Raises:
            UserError: there is no such loss or option.
        """
        known = declared(LOSSES, self.lineage)
        names = loss_names(fit.loss or self.default_loss, known, self.name)
        if names == [self.loss_type.usual] and not fit.loss_options:
            return self.loss_type(fit.label_smoothing, weights)  # the same code as without fit.loss
        return self.loss_type(fit.label_smoothing, weights, with_options([known[name] for name in names], fit))

    def example(self, names: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
        """Return outputs and targets of two samples, to try a loss with; with `shares`, targets as if mixed."""
        return torch.zeros(2, self.outputs(names), requires_grad=True), torch.full((2, names), 0.5 * shares)

    def prepare(self, network: nn.Module, fit: LossSettings, train: Split, names: Sequence[str]) -> str:
        """Adapt a new network to the targets of the train split; return a sentence for the log, or nothing."""
        return ""

    def restore(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Adapt a network to a saved state as `prepare` did, before the state is loaded."""

    def average(self, views: Sequence[Tensor]) -> Tensor:
        """Return the average of outputs for several views of the same images, (N, ...) float32."""
        return torch.stack([*views]).mean(dim=0)

    def unmirrored(self, outputs: Tensor, network: nn.Module) -> Tensor:
        """Return the outputs for mirror images as they are for the images."""
        return outputs

    # --- predictions ---

    def activate(self, outputs: Tensor) -> Tensor:
        """Return what people read of outputs, (N, K) float32: probabilities, or values as they are."""
        return outputs

    def numbers(self, outputs: Tensor, frames: Tensor | None, names: Sequence[str]) -> tuple[Sequence[str], Tensor]:
        """Return the numbers that are predicted, where predictions are not ranked: their names, and values (N, M).

        Args:
            outputs: (N, K) float32.
            frames: (N, 3, 3), see `frames_of`.
            names: names of the units.
        """
        return names, self.activate(outputs)

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return a sample's target in words.

        Args:
            target: the target as a plain number or list; samples may be mixed.
            names: names of the units; may be empty.
        """
        return self.kind.caption(target, names)

    # --- scores of a pass ---

    def unmixed(self, targets: Tensor) -> Tensor:
        """Return the targets of a batch, which may be mixed, as metrics take them."""
        return targets

    def keep(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return what `samples` has of a validation batch besides index and target, (N, ...) each.

        Metrics that need all samples get "output" and "target" of it in place of those of the batch.

        Args:
            outputs: (N, K) float32.
            targets: as `unmixed` returned them.
        """
        return {"output": outputs}

    def condensed(self, samples: S) -> S:
        """Return the samples of a pass without what only some of them need."""
        return samples

    def per_class(self, samples: S, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the scores of each unit by their names; NaN where there is none."""
        return {}

    def evaluate(self, values: MetricsRow, samples: S, names: Sequence[str]) -> Evaluation:
        """Return the scores of a pass; `values` are those of the meter, as a metrics row has them."""
        per_class, images = self.per_class(samples, names), len(samples.index)
        alone = [metric.columns[-1].key for metric in self.unit_metrics(names)]  # which the table has
        sentence = f"{listed(values, [key for key in values if key not in alone])} ({amount(images, 'image')})"
        return Evaluation(images, values, per_class, self.table(per_class), sentence, self.figure(samples, names))

    def right_of(self, samples: S) -> tuple[int, int] | None:
        """Return how many samples are right and how many there are, where the score is their ratio."""
        return None

    def figure(self, samples: S, names: Sequence[str]) -> FigureData | None:
        """Return what to draw of the best epoch as `figure_file`."""
        return None

    def section(self, samples: S, names: Sequence[str]) -> tuple[Block, ...]:
        """Return the blocks of the report's section about single units; without any it is left out."""
        table = self.table(self.per_class(samples, names))
        return (table,) if table.rows else ()

    def findings(self, samples: S, names: Sequence[str]) -> Iterator[Finding]:
        """Yield what the report says about a pass."""
        return iter(())

    def mistakes(self, samples: S, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the samples that the model gets wrong, the worst first."""
        return iter(())

    def draw(self, image: Image, place: NDArray[np.float64], samples: S, position: int, names: Sequence[str]) -> Image:
        """Return the thumbnail of one of the `mistakes` as report and trackers show it: a task may draw on it.

        Args:
            image: the image, upright, in RGB, scaled to a longer side of at most 160 px.
            place: (3, 3), from pixels of the image as it is stored, as frames are, to those of `image`.
            samples: the pass.
            position: the sample's in the pass.
            names: names of the units.
        """
        return image

    # --- derived ---

    def table(self, per_class: Mapping[str, dict[str, float]]) -> Table:
        """Return the scores of the units; of many, those of the worst."""
        shown, title = list(per_class.items()), ""
        if len(shown) > _SHOWN and self.unit_score:
            shown, score = self.worst_first(per_class)[:_SHOWN], self.unit_score.replace("_", " ")
            title = f"the {len(shown)} of {len(per_class):,} {self.units} with the lowest {score}"
        rows = [(name, *map(_cell, scores.values())) for name, scores in shown]
        return Table(title, (self.unit, *next(iter(per_class.values()), {})), rows)

    def worst_first(self, per_class: Mapping[str, dict[str, float]]) -> list[tuple[str, dict[str, float]]]:
        """Return the units that have a `unit_score`, the worst first."""
        known = [unit for unit in per_class.items() if not math.isnan(unit[1][self.unit_score])]
        return sorted(known, key=lambda unit: (unit[1][self.unit_score], unit[0]))

    def bars(
        self,
        per_class: Mapping[str, dict[str, float]],
        title: str,
        head: tuple[str, ...],
        cells: Callable[[dict[str, float]], tuple[str, ...]],
        note: str = "",
    ) -> tuple[Bars, ...]:
        """Return the units with their `unit_score` as a bar and further cells, the worst first; nothing for none."""
        rows = [(name, Bar(found[self.unit_score]), cells(found)) for name, found in self.worst_first(per_class)]
        return (Bars(title, (self.unit, *head), rows, note),) if rows else ()

    def bar_chart(self, per_class: Mapping[str, dict[str, float]], of: str, total: int) -> BarChart:
        """Return a figure of the `unit_score` of units, the worst first, with their numbers of images or objects."""
        bars = [(name, int(found[of]), found[self.unit_score]) for name, found in self.worst_first(per_class)]
        return BarChart(self.unit_score.replace("_", " "), self.units, bars, total)

    def worst(
        self, per_class: Mapping[str, dict[str, float]], score: str, of: str = "image", absent: Sequence[str] = ()
    ) -> Iterator[Finding]:
        """Yield the worst of several units: its score, behind some words, and how many images, say, it has.

        Also yield how many units have no score, with what is said of one and of several.
        """
        known = self.worst_first(per_class)
        if len(known) > 1:
            name, found = known[0]
            count = amount(int(found[f"{of}s"]), of)
            yield Finding(f"Worst {self.unit}: {name}, {score} {percent(found[self.unit_score])} ({count}).")
        missing, total = len(per_class) - len(known), amount(len(per_class), self.unit, self.units)
        if known and missing and absent:
            yield Finding(f"{missing} of {total} {plural(missing, *absent)} not count.", warning=True)

    @property
    def lineage(self) -> list[str]:
        """The names of the tasks that it is derived from, then its own."""
        return [vars(cls)["name"] for cls in type(self).__mro__[::-1] if "name" in vars(cls)]

    @property
    def metrics(self) -> tuple[TaskMetric, ...]:
        """All metrics that are declared for the task or one that it is derived from, those of plugins last."""
        return tuple(sorted(declared(METRICS, self.lineage).values(), key=lambda metric: metric.own))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of tables of epochs."""
        return (*columns_of(self.metrics, val_loss=not self.own_loss), *PACE)

    def display(self, names: Sequence[str]) -> Display:
        """Return what pages show of the task, with the names of its units."""
        columns = (*self.columns, *(column for metric in self.unit_metrics(names) for column in metric.columns))
        score = next((column for column in columns if column.key == f"val_{self.score}"), Column("", ""))
        return Display(
            *(self.units, self.count(len(names)) if names else "", self.monitor, self.score, self.score_title),
            *(score.within == SHARE, score.smaller, columns, self.figure_file, self.panels),
            *(self.mistakes_title, self.mistakes_text),
        )

    def unit_metrics(self, names: Sequence[str]) -> list[TaskMetric]:
        """Return the metrics of each number alone, such as `mae_age` of `mae`, if the task has such."""
        metrics = [metric for metric in self.metrics if self.by_unit and not metric.columns[0].above]
        return [metric.of_unit(i, name) for i, name in enumerate(names) for metric in metrics]

    def measured(self, names: Sequence[str], asked: Collection[str] | None = ()) -> tuple[TaskMetric, ...]:
        """Return what is measured.

        Args:
            names: those of classes, labels or numbers.
            asked: names or keys of metrics that are measured on request; None: all.
        """
        usual = (metric for metric in self.metrics if max(1, len(names)) > metric.columns[0].above)
        known = (*usual, *self.unit_metrics(names))
        return tuple(m for m in known if asked is None or not m.on_request or m.names & {*asked})

    def count(self, number: int) -> str:
        """Return "1 class" or "10 classes"."""
        return amount(number, self.unit, self.units)


def listed(values: MetricsRow, keys: Iterable[str]) -> str:
    """Return some of the values in words, without those that are not known."""
    return ", ".join(f"{key} {values[key]:.4f}" for key in keys if values[key] == values[key])


def _cell(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.4f}"
