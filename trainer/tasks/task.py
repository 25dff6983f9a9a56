"""The base class of tasks. A task defines outputs, losses, scores and reports of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from augment.data.dataset import Split
from augment.data.targets.classification import CLASSES
from augment.data.targets.kind import Kind
from augment.support.formatting import amount, percent, plural
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.class_rates import RATES
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

AUTO = "auto"  # a callback's `monitor` with this value uses the `monitor` of the task
_SHOWN = 60  # maximum number of rows in a table on the terminal


class Task(Generic[S]):
    """A kind of prediction. A subclass overrides methods, declares metrics for its `name`, and registers itself."""

    name: ClassVar[str]  # in datasets and checkpoints
    kind: ClassVar[Kind] = CLASSES  # the kind of targets
    unit: ClassVar[str]  # what each name stands for, such as "class"
    units: ClassVar[str]  # the plural of `unit`

    monitor: ClassVar[str]  # the metric that selects the best epoch by default
    score: ClassVar[str]  # the metric that the curves and the report show in addition to the loss
    score_title: ClassVar[str]  # the heading of `score`
    unit_score: ClassVar[str] = ""  # the score in `per_class` whose lowest value is the worst. Empty: none

    own_models: ClassVar[bool] = False  # whether the task needs special models, see `trainer.models.base.Model.task`
    # Whether models also take the targets in training, and return losses. Then validation has no loss.
    own_loss: ClassVar[bool] = False
    views: ClassVar[tuple[str, ...]] = ("none", "flip")  # test-time augmentations whose outputs it can average
    samples: ClassVar[type[Samples]] = OutputSamples  # the values of each sample that validation and best.pt keep
    sums: ClassVar[tuple[str, ...]] = ()  # fields of `samples` that are summed over the batches, not joined

    loss_type: ClassVar[type[NamedLoss]] = NamedLoss
    # Default of `fit.loss`. Empty: `loss_type` with its usual loss, such as cross entropy.
    default_loss: ClassVar[str] = ""
    loss_settings: ClassVar[tuple[str, ...]] = ()  # the loss settings that have an effect

    by_unit: ClassVar[bool] = False  # whether metrics are also measured separately for each unit
    ranked: ClassVar[bool] = True  # whether a prediction lists probabilities, highest first, rather than values
    top: ClassVar[int | None] = None  # number of units in a ranked prediction by default. None: all
    threshold: ClassVar[float | None] = None  # lowest probability in a ranked prediction by default. None: any

    figure_file: ClassVar[str] = ""  # name of the best epoch's figure. Empty: no figure
    panels: ClassVar[int] = 1  # width of `draw`'s result, as a multiple of a usual thumbnail's width
    thumbnail: ClassVar[int] = 160  # longer side of the image for `draw`, in pixels
    mistakes_title: ClassVar[str] = "Most confidently wrong"  # heading of the report's worst samples
    # The end of the sentence below this heading, which starts with "Validation images".
    mistakes_text: ClassVar[str] = "that the best epoch got wrong, most confident first"

    # --- training ---

    def require(self) -> None:
        """Check that the packages of the task are installed.

        Raises:
            UserError: a package is missing.
        """

    def outputs(self, names: int) -> int:
        """Return the number of a network's outputs for a number of classes, labels, numbers or keypoints."""
        return names

    def targets_of(self, batch: Batch) -> Any:
        """Return a batch's targets in the form that losses take. `unmixed` converts them for metrics."""
        return batch.targets

    def frames_of(self, batch: Batch) -> Tensor | None:
        """Return the matrices from stored pixels to output coordinates, (N, 3, 3), or None if the loader has none."""
        return batch.frames

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the losses of training and validation.

        By default, the validation loss ignores the settings, so that different fits are comparable.

        Args:
            fit: settings of the fit.
            network: the model, prepared or restored.
            device: the device of outputs and targets.
            weights: (K,) weights of the classes or labels in training. Default: 1.
        """
        train = self.loss_type(fit.label_smoothing, weights) if fit.loss is None else self.named_loss(fit, weights)
        return train, self.loss_type()

    def named_loss(self, fit: LossSettings, weights: Tensor | None = None) -> NamedLoss:
        """Return the loss that `fit.loss` names, or the default loss. See `make_losses` for the weights.

        Raises:
            UserError: an unknown loss or option.
        """
        known = declared(LOSSES, self.lineage)
        names = loss_names(fit.loss or self.default_loss, known, self.name)
        if names == [self.loss_type.usual] and not fit.loss_options:
            return self.loss_type(fit.label_smoothing, weights)  # the same code path as without fit.loss
        return self.loss_type(fit.label_smoothing, weights, with_options([known[name] for name in names], fit))

    def example(self, names: int, *, shares: bool = False) -> tuple[Tensor, Tensor]:
        """Return outputs and targets of two samples to try a loss. With `shares`, targets are mixed."""
        return torch.zeros(2, self.outputs(names), requires_grad=True), torch.full((2, names), 0.5 * shares)

    def prepare(self, network: nn.Module, fit: LossSettings, train: Split, names: Sequence[str]) -> str:
        """Adapt a new network to the targets of the train split. Return a sentence for the log, or an empty string."""
        return ""

    def restore(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Adapt a network to a saved state, as `prepare` did, before the network loads the state."""

    def average(self, views: Sequence[Tensor]) -> Tensor:
        """Average the outputs for several views of the same images, (N, ...) float32."""
        return torch.stack([*views]).mean(dim=0)

    def unmirrored(self, outputs: Tensor, network: nn.Module) -> Tensor:
        """Convert the outputs for mirror images to outputs for the images."""
        return outputs

    # --- predictions ---

    def activate(self, outputs: Tensor) -> Tensor:
        """Convert outputs to readable values, (N, K) float32, such as probabilities."""
        return outputs

    def numbers(self, outputs: Tensor, frames: Tensor | None, names: Sequence[str]) -> tuple[Sequence[str], Tensor]:
        """Return names and values, (N, M), of the predicted numbers. Only tasks that are not `ranked` need it.

        Args:
            outputs: (N, K) float32.
            frames: (N, 3, 3), see `frames_of`.
            names: names of the units.
        """
        return names, self.activate(outputs)

    def caption(self, target: Any, names: Sequence[str]) -> str:
        """Return a sample's target in words.

        Args:
            target: a plain number or list, possibly mixed.
            names: names of the units, possibly empty.
        """
        return self.kind.caption(target, names)

    # --- scores of a pass ---

    def unmixed(self, targets: Tensor) -> Tensor:
        """Return the targets of a batch, possibly mixed, in the form that metrics take."""
        return targets

    def keep(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return a batch's tensors for the fields that `samples` adds to index and target.

        Each is (N, ...), or (1, ...) for the fields in `sums`.

        If the result contains "output" or "target", metrics that need all samples use it instead of the batch's outputs
        or targets.

        Args:
            outputs: (N, K) float32.
            targets: the result of `unmixed`.
        """
        return {"output": outputs}

    def keep_matches(self, outputs: Tensor, targets: Any) -> Mapping[str, Tensor]:
        """Return more tensors of a batch, like `keep`. `targets` is the result of `targets_of`."""
        return {}

    def condensed(self, samples: S) -> S:
        """Reduce the samples of a whole pass, for example to thumbnails of the worst ones."""
        return samples

    def per_class(self, samples: S, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the scores of each unit by name, NaN if unknown."""
        return {}

    def choose_thresholds(self, samples: S, names: Sequence[str]) -> tuple[float, ...]:
        """Return a threshold for each unit, chosen on this pass.

        Predictions list units with at least this probability. If the result is empty, `threshold` applies.
        """
        return ()

    def at_thresholds(
        self, scores: Evaluation, samples: S, names: Sequence[str], thresholds: Sequence[float]
    ) -> Evaluation:
        """Add the scores with the thresholds that `choose_thresholds` returned for another pass."""
        return scores

    def evaluate(self, values: MetricsRow, samples: S, names: Sequence[str]) -> Evaluation:
        """Return the scores of a pass. `values` come from the meter, with their keys in metrics.jsonl."""
        per_class, images = self.per_class(samples, names), len(samples.index)
        in_table = [metric.columns[-1].key for metric in self.unit_metrics(names, values)]
        sentence = f"{self.monitor} {values[self.monitor]:.4f} ({amount(images, 'image')})"
        others = {key: value for key, value in values.items() if key not in (self.monitor, *in_table)}
        figure = self.figure(samples, names)
        return Evaluation(images, values, per_class, self.table(per_class), sentence, others, figure)

    def right_of(self, samples: S) -> tuple[int, int] | None:
        """Return the number of correct samples and of all samples, if the score is their ratio."""
        return None

    def figure(self, samples: S, names: Sequence[str]) -> FigureData | None:
        """Return the content of the best epoch's figure, if any."""
        return None

    def section(self, samples: S, names: Sequence[str]) -> tuple[Block, ...]:
        """Return the report's section about the units, or () for no section."""
        table = self.table(self.per_class(samples, names))
        return (table,) if table.rows else ()

    def findings(self, samples: S, names: Sequence[str]) -> Iterator[Finding]:
        """Yield the sentences about a pass for the report."""
        return iter(())

    def mistakes(self, samples: S, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the samples with wrong predictions, the worst first."""
        return iter(())

    def draw(self, image: Image, matrix: NDArray[np.float64], samples: S, position: int, names: Sequence[str]) -> Image:
        """Return the thumbnail of one of the `mistakes` for the report and trackers. A task may draw on it.

        Args:
            image: the image, upright, in RGB, scaled to a longer side of at most `thumbnail`.
            matrix: (3, 3), from pixels of the stored image to pixels of `image`.
            samples: the pass.
            position: position of the sample in the pass.
            names: names of the units.
        """
        return image

    # --- derived ---

    def table(self, per_class: Mapping[str, dict[str, float]]) -> Table:
        """Return a table of the units' scores, or only of the worst units if there are many."""
        shown, title = list(per_class.items()), ""
        if len(shown) > _SHOWN and self.unit_score:
            shown, score = self.worst_first(per_class)[:_SHOWN], self.unit_score.replace("_", " ")
            title = f"the {len(shown)} of {len(per_class):,} {self.units} with the lowest {score}"
        rows = [(name, *map(_cell, scores.values())) for name, scores in shown]
        return Table(title, (self.unit, *next(iter(per_class.values()), {})), rows)

    def rates_table(
        self,
        per_class: Mapping[str, dict[str, float]],
        rates: Sequence[str] = tuple(RATES),
        title: str = "Recall, precision, specificity and F1",
    ) -> Table:
        """Return a table with rates of each unit, or only of the worst units."""
        keys = (*rates, self.unit_score)  # the last column only selects the worst units, and is removed below
        values = {name: dict(zip(keys, itemgetter(*keys)(found), strict=True)) for name, found in per_class.items()}
        table, width = self.table(values), 1 + len(rates)
        title = table.title or f"{title} of each {self.unit}"
        return replace(table, title=title, head=table.head[:width], rows=[row[:width] for row in table.rows])

    def worst_first(self, per_class: Mapping[str, dict[str, float]]) -> list[tuple[str, dict[str, float]]]:
        """Return the units with a known `unit_score`, the worst first."""
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
        """Return a table with a bar for each unit's `unit_score` and further cells, the worst unit first."""
        rows = [(name, Bar(found[self.unit_score]), cells(found)) for name, found in self.worst_first(per_class)]
        return (Bars(title, (self.unit, *head), rows, note),) if rows else ()

    def bar_chart(self, per_class: Mapping[str, dict[str, float]], of: str, total: int) -> BarChart:
        """Return a bar chart of the units' `unit_score`, worst first.

        `of` names the count next to each bar, such as "images".
        """
        bars = [(name, int(found[of]), found[self.unit_score]) for name, found in self.worst_first(per_class)]
        return BarChart(self.unit_score.replace("_", " "), self.units, bars, total)

    def worst(
        self, per_class: Mapping[str, dict[str, float]], score: str, of: str = "image", absent: Sequence[str] = ()
    ) -> Iterator[Finding]:
        """Yield a sentence about the worst of several units, and one about units without a score.

        Args:
            per_class: scores of the units.
            score: how the first sentence names `unit_score`.
            of: the noun for the number in the first sentence. Its plural is a key of `per_class`, such as "images".
            absent: the predicate of the second sentence before "not count", such as "is on no image and does", in
                singular and plural. Its subject is the number of units without a score.
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
    def model_task(self) -> str:
        """The `trainer.models.base.Model.task` of suitable models. Empty: the task needs no special models."""
        return self.name if self.own_models else ""

    @property
    def lineage(self) -> list[str]:
        """The names of the base tasks, followed by the task's own name."""
        return [vars(cls)["name"] for cls in type(self).__mro__[::-1] if "name" in vars(cls)]

    @property
    def metrics(self) -> tuple[TaskMetric, ...]:
        """All metrics of the task and of its base tasks. Metrics of plugins come last."""
        return tuple(sorted(declared(METRICS, self.lineage).values(), key=lambda metric: metric.own))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a table of epochs."""
        return (*columns_of(self.metrics, val_loss=not self.own_loss), *PACE)

    def display(self, names: Sequence[str], asked: Collection[str] = ()) -> Display:
        """Return the facts about the task that the report and the dashboard show.

        Args:
            names: names of the units.
            asked: names or keys of the metrics on request.
        """
        units = self.unit_metrics(names, None if self.by_unit else asked)
        columns = (*self.columns, *(column for metric in units for column in metric.columns))
        score = next((column for column in columns if column.key == f"val_{self.score}"), Column("", ""))
        return Display(
            units=self.units,
            count=self.count(len(names)) if names else "",
            monitor=self.monitor,
            score=self.score,
            score_title=self.score_title,
            share=score.within == SHARE,
            smaller=score.smaller,
            columns=columns,
            figure_file=self.figure_file,
            panels=self.panels,
            mistakes_title=self.mistakes_title,
            mistakes_text=self.mistakes_text,
        )

    def unit_metrics(self, names: Sequence[str], asked: Collection[str] | None = None) -> list[TaskMetric]:
        """Return the per-unit metrics, such as `recall_cat`, or `mae_age` if the task is `by_unit`.

        `asked` contains the names or keys of the metrics to return. None: all, which takes long for many classes.
        """
        taken = {metric.name for metric in self.metrics}  # a class may be called "micro"
        metrics = [metric for metric in self.metrics if self.has_units(metric)]
        found = (
            metric.of_unit(i, name)
            for i, name in enumerate(names)
            for metric in metrics
            if is_asked(f"{metric.stem}_{name}", asked)
        )
        return [metric for metric in found if metric.name not in taken]

    def has_units(self, metric: TaskMetric) -> bool:
        """Return whether a metric has a variant for each unit."""
        return metric.of_class is not None or (self.by_unit and not metric.columns[0].above)

    def measured(
        self, names: Sequence[str], asked: Collection[str] | None = (), model: object = None
    ) -> tuple[TaskMetric, ...]:
        """Return the metrics to measure.

        Args:
            names: names of the units.
            asked: names or keys of the metrics on request to include. None: all except per-class metrics, because there
                may be thousands.
            model: the network or its settings, for metrics with `needs`.
        """
        able = (metric for metric in self.metrics if not metric.needs or getattr(model, metric.needs, False))
        usual = (metric for metric in able if max(1, len(names)) > metric.columns[0].above)
        known = (*usual, *self.unit_metrics(names, None if self.by_unit else asked or ()))
        return tuple(m for m in known if asked is None or not m.on_request or m.names & {*asked})

    def count(self, number: int) -> str:
        """Return a string such as "1 class" or "10 classes"."""
        return amount(number, self.unit, self.units)


def is_asked(name: str, asked: Collection[str] | None) -> bool:
    """Return whether `asked` contains the name of a metric or one of its keys. None contains all."""
    return asked is None or not {name, f"val_{name}", f"train_{name}"}.isdisjoint(asked)


def _cell(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.4f}"
