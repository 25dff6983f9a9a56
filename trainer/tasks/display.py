"""The predictions, tables, findings and figures of a task, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augment.support.errors import import_extra
from trainer.tasks.metric import Column


@dataclass(frozen=True)
class Display:
    """The facts about a task that the report and the dashboard show. See `trainer.tasks.task.Task` for the fields."""

    units: str
    count: str  # such as "10 classes"
    monitor: str
    score: str
    score_title: str
    share: bool  # whether the score is in [0, 1]
    smaller: bool  # whether a smaller score is better
    columns: tuple[Column, ...]
    figure_file: str
    panels: int
    mistakes_title: str
    mistakes_text: str


class Finding(NamedTuple):
    """A sentence about a run in the report."""

    text: str
    warning: bool = False


class WrongSample(NamedTuple):
    """A sample with a wrong prediction."""

    position: int  # in the pass
    true: str  # the target in words
    predicted: str  # the prediction in words
    confidence: float | None = None  # the probability of the prediction. None: the task has no probabilities


class FoundObject(NamedTuple):
    """An object that a detector found in an image."""

    name: str  # name of its class
    label: int  # index of its class
    score: float
    box: tuple[float, ...]  # left, top, right and bottom edge in pixels
    runs: Mapping[str, Any] | None = None  # the mask in COCO's run-length encoding (RLE), {"size": ..., "counts": ...}

    @property
    def width(self) -> float:
        return self.box[2] - self.box[0]

    @property
    def height(self) -> float:
        return self.box[3] - self.box[1]

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """The pixels of the object, (height, width) of the image, or None if the model predicts no masks."""
        if self.runs is None:
            return None
        mask: NDArray[np.uint8] = import_extra("instance masks", "faster-coco-eval", "detect").mask.decode(self.runs)
        return mask > 0


@dataclass(frozen=True)
class FoundObjects:
    """The objects that were found in an image."""

    found: tuple[FoundObject, ...]  # in pixels of the upright image, the highest score first
    size: tuple[int, int]  # width and height of the upright image
    names: tuple[str, ...]  # names of all classes by label


NOTHING = "nothing found"  # shown instead of an empty list of labels or objects


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for an image."""

    file: Path  # or the name of an image in memory
    # The most probable classes or labels with their probabilities in [0, 1], the highest first. Segmentation lists
    # classes with their shares of the pixels. Detection lists the classes of the objects with their scores.
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""  # why the image cannot be used, if there is no prediction
    numbers: tuple[tuple[str, float], ...] = ()  # names and values, if the task predicts numbers
    unit: str = "class"  # the kind of names in `classes`, "class" or "label"
    objects: FoundObjects | None = None
    mask: Path | None = None  # mask file, whose pixels are labels
    labels: NDArray[np.uint8] | None = None  # the mask, (height, width), if it has no file


class Bar(NamedTuple):
    """A share in [0, 1], drawn as a bar, with its 95% interval if known."""

    share: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Bars:
    """A table with a name, a bar and further cells in each row, and a note below it."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, Bar, tuple[str, ...]]]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table of strings.

    The first `left` columns are aligned to the left, and the others, which contain numbers, to the right.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix, (C, C). Rows are true classes, columns are predicted classes.

    With `shares`, cells show shares of the true class instead of counts.
    """

    counts: NDArray[np.int64]
    names: Sequence[str]
    shares: bool = False


@dataclass(frozen=True)
class BarChart:
    """A figure with a bar for each class or label that has a value."""

    quantity: str  # what the bars show, in [0, 1], such as "average precision"
    units: str  # what the bars stand for, such as "labels"
    bars: Sequence[tuple[str, int, float]]  # name, number of images or objects, value
    total: int  # number of classes or labels, including classes and labels without a value


@dataclass(frozen=True)
class Scatter:
    """A figure of predictions against targets, (N, K), with a panel for each of the K numbers. N is at least 1."""

    targets: NDArray[np.float32]
    outputs: NDArray[np.float32]
    names: Sequence[str]


FigureData = Matrix | BarChart | Scatter


@dataclass(frozen=True)
class FigureImage:
    """The task's figure as an image in the report, below the other blocks."""

    title: str
    alt: str


Block = Bars | Table | Matrix | FigureImage


@dataclass(frozen=True)
class Evaluation:
    """Scores of a pass over images."""

    images: int  # number of images
    values: Mapping[str, Any]  # scores by their keys in evaluation.json
    per_class: Mapping[str, Any]  # scores of each class, label or number by name
    table: Table  # `per_class` for a terminal
    sentence: str  # the most important score
    others: Mapping[str, float]  # the scores that are neither in `table` nor in `sentence`
    figure: FigureData | None  # the figure of the task, if it has one
    tta: str = "none"  # test-time augmentation
    # Precision, recall, specificity and F1 of each class by name, if `per_class` does not contain them
    class_rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def with_run_rates(self, means: Mapping[str, float], rates: Mapping[str, Mapping[str, float]]) -> "Evaluation":
        """Add the rates of each class at the thresholds of a run, and their means."""
        per_class = {name: {**scores, "run": rates[name]} for name, scores in self.per_class.items()}
        values, others = {**self.values, **means}, {**self.others, **means}
        return replace(self, values=values, others=others, per_class=per_class)
