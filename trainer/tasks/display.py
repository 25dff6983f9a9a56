"""What a task shows, as plain data: columns, tables, findings, figures; other packages draw it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.tasks.metric import Column


@dataclass(frozen=True)
class Display:
    """What pages show of a task, whose attributes are described in `trainer.tasks.task.Task`."""

    units: str
    count: str  # such as "10 classes"
    monitor: str
    score: str
    score_title: str
    share: bool
    smaller: bool
    columns: tuple[Column, ...]
    figure_file: str
    panels: int
    mistakes_title: str
    mistakes_text: str


class Finding(NamedTuple):
    """A sentence about a run, and whether it is a warning."""

    text: str
    warning: bool = False


class WrongSample(NamedTuple):
    """A sample that the model gets wrong, by its position in the pass: its target and the prediction, in words.

    `confidence` is the probability that the model gives to its prediction; None where it gives none.
    """

    position: int
    true: str
    predicted: str
    confidence: float | None = None


class FoundObject(NamedTuple):
    """An object that was found in an image: its class by name and label, its score, and its box in pixels."""

    name: str
    label: int
    score: float
    box: tuple[float, ...]

    @property
    def width(self) -> float:
        """Width of the box."""
        return self.box[2] - self.box[0]

    @property
    def height(self) -> float:
        """Height of the box."""
        return self.box[3] - self.box[1]


class Bar(NamedTuple):
    """A share in [0, 1], drawn as a bar; `interval` is its 95% interval, if known."""

    share: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Bars:
    """A table whose second column is a bar: rows of a name, a bar and further cells; `note` is a sentence below."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, Bar, tuple[str, ...]]]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts, whose first columns, `left` of them, are aligned to the left; all others hold numbers."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix, (C, C): rows are true classes, columns predicted ones.

    With `shares`, cells show shares of the true class, as the counts are large ones of pixels.
    """

    counts: NDArray[np.int64]
    names: Sequence[str]
    shares: bool = False


@dataclass(frozen=True)
class BarChart:
    """A figure of a bar for each class or label."""

    quantity: str  # what the bars show, in [0, 1], as "average precision"
    units: str  # plural of what a bar stands for, as "labels"
    bars: Sequence[tuple[str, int, float]]  # name, number of images and value of each that has a value
    total: int  # number of all


@dataclass(frozen=True)
class Scatter:
    """A figure of predictions over targets, (N, K) with N at least 1, and a panel for each of the K numbers."""

    targets: NDArray[np.float32]
    outputs: NDArray[np.float32]
    names: Sequence[str]


FigureData = Matrix | BarChart | Scatter


@dataclass(frozen=True)
class FigureImage:
    """The task's figure, as an image in the report, below the other blocks."""

    title: str
    alt: str


Block = Bars | Table | Matrix | FigureImage


@dataclass(frozen=True)
class Evaluation:
    """Scores of a pass over images."""

    images: int  # their number
    values: Mapping[str, Any]  # scores by their names in evaluation.json; None where there is no number
    per_class: Mapping[str, Any]  # scores of each class, label or number, by its name
    table: Table  # these scores, for a terminal
    sentence: str  # the scores in one line
    figure: FigureData | None  # the figure of the task, if it has one
    tta: str = "none"  # test-time augmentation
