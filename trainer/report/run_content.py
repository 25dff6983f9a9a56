"""The content of a run's page: the run in its folder, and the predictions of its best epoch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from PIL.Image import Image

from augment.data.dataset import ImageRef
from augment.data.images import name_of
from augment.support.errors import UserError, first_line
from augment.support.files import json_line, write_atomically
from augment.support.untrusted_files import explained_damage, read_as
from trainer.callbacks.plots import MISTAKES, REPORT
from trainer.figures.images import SIDE, data_uri, worst_images
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import FAILED, FINISHED, INTERRUPTED
from trainer.tasks.classify import wilson_interval
from trainer.tasks.display import Block, Display, Finding, Matrix, WrongSample
from trainer.tasks.metric import MetricsRow, Samples
from trainer.tasks.registry import best_row, task_named, task_of

REPORT_FILE, MISTAKES_FILE = REPORT, MISTAKES

DEFAULT_MISTAKES = 24  # number of wrong images to show

Maps = Callable[[Samples, Sequence[int]], Sequence[Image]]


@dataclass(frozen=True)
class Mistake:
    """A validation image that the model gets wrong."""

    name: str
    true: str  # its target, as text
    predicted: str  # the prediction, as text
    confidence: float | None  # the probability of the prediction, None if the model has none
    uri: str  # a thumbnail as a data URI, empty if the file cannot be read
    map: str = ""  # a Grad-CAM map as a data URI, or empty

    def __post_init__(self) -> None:
        # Loading an image from a server would reveal the reader of the page to that server.
        if not all(uri == "" or uri.startswith("data:image/jpeg;base64,") for uri in (self.uri, self.map)):
            raise ValueError("an image is not an embedded JPEG")


@dataclass(frozen=True)
class BestPass:
    """The predictions of the best epoch for the page, as plain values."""

    epoch: float
    # The images with the worst predictions, the worst first. None: not computed
    images: tuple[Mistake, ...] | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()  # blocks about single classes
    findings: tuple[Finding, ...] = ()
    total: int = 0  # number of images
    interval: tuple[float, float] | None = None  # the 95% interval of the share of correct predictions


@dataclass
class RunRecord:
    """A run and its progress."""

    run: RunFolder  # read from its folder or filled from its fit. Its seconds are NaN until the run ends
    display: Display  # how to show the task
    best: MetricsRow = field(default_factory=dict)  # the row of the best epoch, empty if unknown
    best_pass: BestPass | None = None  # its predictions, if there are any
    left: float | None = None  # estimated seconds until the run ends, None if unknown

    @property
    def epochs(self) -> int:
        """The configured number of epochs. 0: unknown."""
        return len(self.run.facts.batches) or self.run.summary.planned

    def add_best(
        self,
        read: Callable[[], BestModel | None],
        files: Sequence[ImageRef] = (),
        most: int = 0,
        maps: Maps = lambda *_: [],
    ) -> None:
        """Add the results of the best epoch. If they cannot be read, note the reason.

        Args:
            read: returns the model of the best epoch and its predictions.
            files: the validation images by index.
            most: the largest number of wrong images to draw.
            maps: returns the Grad-CAM maps of some samples, if there are any.
        """
        try:
            with explained_damage(self.run.folder / BEST):
                if (best := read()) is None:
                    return
                task, names, samples = task_named(best.task), best.classes, None
                if best.samples is not None and len(best.samples["index"]):
                    samples = task.samples(**best.samples)
        except (OSError, UserError) as error:
            self.run.notes[BEST] = first_line(error)
            return
        self.best, self.display = best.row, task.display(names, best.row)
        if samples is not None:
            right = task.right_of(samples)
            worst = worst_images(task, samples, names, files, most) if most else None
            self.best_pass = BestPass(
                epoch=best.row["epoch"],
                images=None if worst is None else tuple(_mistakes(worst, samples, maps)),
                blocks=tuple(map(_plain_block, task.section(samples, names))),
                findings=tuple(task.findings(samples, names)),
                total=right[1] if right else 0,
                interval=wilson_interval(*right) if right else None,
            )


def _plain_block(block: Block) -> dict[str, Any]:
    plain = {"kind": type(block).__name__, **vars(block)}
    if isinstance(block, Matrix):
        plain["counts"] = block.counts.tolist()
    return plain


def _mistakes(
    worst: Sequence[tuple[WrongSample, ImageRef, Image | None]], samples: Samples, maps: Maps
) -> Iterator[Mistake]:
    drawn = maps(samples, [wrong.position for wrong, _, _ in worst])
    for map_image in drawn:
        map_image.thumbnail((SIDE, SIDE))
    for (wrong, file, image), map_image in zip_longest(worst, drawn):
        uris = ("" if each is None else data_uri(each, "JPEG", 82) for each in (image, map_image))
        yield Mistake(name_of(file), wrong.true, wrong.predicted, wrong.confidence, *uris)


def read_record(folder: Path) -> RunRecord:
    """Read the folder of a run. Load predictions from best.pt only if mistakes.json does not have them."""
    run = RunFolder(folder)
    if run.summary.status not in (FINISHED, FAILED, INTERRUPTED):
        run.summary = replace(run.summary, status=run.status, seconds=math.nan)
    run.rows = [row for row in run.rows if math.isfinite(row.get("epoch", math.nan))]
    record = RunRecord(run, run.facts.display or task_of(run.rows).display(run.facts.classes))
    found = run.attempt(MISTAKES_FILE, partial(read_as, BestPass), None)
    if found and found.epoch == run.summary.best.get("epoch"):
        record.best, record.best_pass = run.summary.best, found
    elif (folder / BEST).is_file():
        record.add_best(partial(load, folder / BEST, BestModel))
    if not record.best:
        record.best = best_row(run.rows, record.display.monitor)
    return record


def write_best(record: RunRecord) -> None:
    """Save a record's predictions, so that later pages can show them."""
    if record.best_pass is not None:
        write_atomically(record.run.folder / MISTAKES_FILE, json_line(asdict(record.best_pass)))
