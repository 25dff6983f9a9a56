"""What the page of a run shows: the run as its folder holds it, and how far it has come."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from augment.data.dataset import ImageRef
from augment.data.images import name_of
from augment.support.errors import UserError, first_line
from augment.support.files import json_line, write_atomically
from augment.support.reading import contents, read_object
from trainer.callbacks.plots import REPORT
from trainer.figures.images import SIDE, data_uri, worst_images
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.run.facts import FACTS_FILE
from trainer.run.run_folder import RunFolder
from trainer.run.summary import FAILED, FINISHED, INTERRUPTED, Summary
from trainer.tasks.display import MetricsRow
from trainer.tasks.meter import Samples
from trainer.tasks.registry import DEFAULT, best_row, task_named, task_of
from trainer.tasks.task import Task

REPORT_FILE, MISTAKES_FILE = REPORT, "mistakes.json"

MISTAKES = 24  # wrong images that are shown by default

Maps = Callable[[Samples, Sequence[int]], Sequence[Image]]


@dataclass(frozen=True)
class Mistake:
    """A validation image that the model gets wrong."""

    name: str
    true: str  # its target, in words
    predicted: str  # what the model predicts
    confidence: float | None  # the probability that the model gives to its prediction; None where it gives none
    uri: str  # a thumbnail, as a data URI; empty if the file cannot be read
    map: str = ""  # where the model looks, as a data URI; empty if nobody knows


@dataclass
class RunRecord:
    """A run, and how far it has come."""

    run: RunFolder  # the run as its folder holds it
    ending: Summary  # how the run ended; the seconds of one that has not are NaN
    rows: list[MetricsRow] = field(default_factory=list)  # the metrics of each epoch
    best: MetricsRow = field(default_factory=dict)  # the best epoch's row; empty if there is none
    classes: tuple[str, ...] = ()  # names of classes, labels or numbers
    samples: Samples | None = None  # the best epoch's predictions for each validation image; None if there are none
    task: Task[Any] = field(default_factory=lambda: task_named(DEFAULT))
    # Running values within epochs, each with "seconds", "step" and more
    steps: list[MetricsRow] = field(default_factory=list)
    # The images that the best epoch gets most wrong, the worst first; None: nobody has looked
    mistakes: Sequence[Mistake] | None = None
    left: float | None = None  # estimated seconds until the end of a run in progress; None: unknown

    @property
    def epochs(self) -> int:
        """Epochs that were configured; 0: unknown."""
        return len(self.run.facts.batches) or self.ending.planned

    @property
    def batches_before(self) -> NDArray[np.int64] | None:
        """Training batches before each epoch and, last, of the whole fit: (epochs + 1,); None if unknown."""
        batches = self.run.facts.batches
        return np.cumsum([0, *batches]) if batches else None

    def add_mistakes(self, files: Sequence[ImageRef], most: int, maps: Maps = lambda *_: []) -> None:
        """Draw the images that the best epoch gets most wrong, from validation images in the order of their indices.

        Args:
            files: the validation images.
            most: the most to draw.
            maps: returns where the model looks in samples at some positions; nothing if nobody knows.
        """
        worst = worst_images(self.task, self.samples, self.classes, files, most) if self.samples is not None else None
        if worst is not None and self.samples is not None:
            looks = maps(self.samples, [wrong.position for wrong, _, _ in worst])
            for image in looks:
                image.thumbnail((SIDE, SIDE))
            self.mistakes = [
                Mistake(
                    *(name_of(file), wrong.true, wrong.predicted, wrong.confidence),
                    uri="" if image is None else data_uri(image, "JPEG", 82),
                    map="" if look is None else data_uri(look, "JPEG", 82),
                )
                for (wrong, file, image), look in zip_longest(worst, looks)
            ]

    def add_best(self, read: Callable[[], BestModel | None]) -> None:
        """Add what the best epoch achieved, if a function can read it; otherwise note why not."""
        try:
            with contents(self.run.folder / BEST):
                if (best := read()) is None:
                    return
                self.best, self.classes, self.task = best.row, best.classes, task_named(best.task)
                if best.samples is not None and len(best.samples["index"]):
                    self.samples = self.task.samples(**best.samples)
        except (OSError, UserError) as error:
            self.run.notes[BEST] = first_line(error)


def read_record(folder: Path) -> RunRecord:
    """Read the folder of a run."""
    run = RunFolder(folder)
    ending = run.summary
    if ending.status not in (FINISHED, FAILED, INTERRUPTED):
        ending = replace(ending, status=run.status, seconds=math.nan)
    rows, steps = (
        [row for row in found if math.isfinite(row.get(counter, math.nan))]
        for found, counter in ((run.rows, "epoch"), (run.steps, "step"))
    )
    task = run.attempt(FACTS_FILE, lambda _: task_named(run.facts.task), None) if run.facts.task else None
    record = RunRecord(run, ending, rows, classes=run.facts.classes, task=task or task_of(rows), steps=steps)
    if (folder / BEST).is_file():
        record.add_best(partial(load, folder / BEST, BestModel))
        found: dict[float, list[Mistake]] = run.attempt(MISTAKES_FILE, load_mistakes, {})
        record.mistakes = found.get(record.best.get("epoch", math.nan))
    if not record.best:
        record.best = best_row(record.rows, record.task.monitor)
    return record


def write_mistakes(record: RunRecord) -> None:
    """Keep the mistakes of a record for pages that are written later."""
    values = {"epoch": record.best["epoch"], "images": [vars(mistake) for mistake in record.mistakes or ()]}
    write_atomically(record.run.folder / MISTAKES_FILE, json_line(values))


def load_mistakes(file: Path) -> dict[float, list[Mistake]]:
    """Return what `write_mistakes` wrote, by the epoch.

    Raises:
        UserError: they are damaged, or a link.
        OSError: there are none.
    """
    found = read_object(file)
    with contents(file):
        made = [Mistake(**image) for image in found["images"]]
        for mistake in made:
            images = (mistake.uri, mistake.map)
            texts = (mistake.name, mistake.true, mistake.predicted, *images)
            known = isinstance(mistake.confidence, float | None) and all(isinstance(text, str) for text in texts)
            # What comes from elsewhere would tell its server who looks at the page.
            if not known or not all(uri == "" or uri.startswith("data:image/jpeg;base64,") for uri in images):
                raise ValueError("no images of mistakes")
        return {float(found["epoch"]): made}
