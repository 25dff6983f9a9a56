"""The base class of experiment trackers. They send values in a thread, so that training does not wait."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeVar
from uuid import uuid4

from PIL import Image

from augment.data.images import portable_name
from augment.support.background import CallQueue
from augment.support.errors import UserError, first_line, missing_package
from augment.support.formatting import as_bytes, printable
from augment.support.lazy_torch import nn
from augment.support.untrusted_files import read_object
from trainer.callbacks.checkpoint import best_model, best_of
from trainer.callbacks.optimizer_steps import ending_of
from trainer.callbacks.plots import BATCH, REPORT
from trainer.callbacks.recorder import Recorder, StepRow
from trainer.figures.images import worst_images
from trainer.loop.callback import Callback, Phase, RunDescription, name_in_config
from trainer.loop.checkpoint import BEST, BestModel
from trainer.loop.lazy_learner import Learner
from trainer.loop.progress import Position
from trainer.tasks.registry import best_row

# Names of values other than metrics.
BATCH_IMAGE, MISTAKES_TABLE, MODEL = "batch", "wrong_predictions", "model"

ENVIRONMENT_FILE = "environment.json"  # in the folder of a run

_MAX_MISTAKES = 24
_IDS = re.compile(r"[0-9A-Za-z_-]{1,64}")  # the form of valid ids. A checkpoint from elsewhere may contain others

log = logging.getLogger(__name__)

Cell = str | float | Image.Image
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrackedRun(RunDescription):
    """Describes a run to a tracker. The name and the tags may contain any characters.

    Attributes:
        id: an identifier of letters and digits. A resumed run keeps it.
        resumed: whether the run was tracked before it was interrupted.
        named: whether the configuration sets `name`. Otherwise, the name comes from the folder or the sweep.
        revision: the git revision of this project. Empty: unknown.
    """

    id: str
    resumed: bool
    named: bool
    revision: str = ""


class Tracker(Callback):
    """Base of experiment trackers, which send curves, images, wrong predictions and optionally best.pt.

    A tracker is a dataclass of settings that implements `start`, `log`, `reached`, `image`, `table`, `artifact` and
    `finish`. One thread calls them, in order, while training continues. The recorder has already read their values, so
    nothing waits for a GPU.

    If the service rejects a value, image or file, the tracker leaves it out, and warns once. Tracking ends after an
    error in `start`, and after an OSError while values are sent, such as a lost connection. No error ends the run.

    Values of epochs have the same names as in metrics.jsonl. The names of the best epoch's values start with `best/`.
    The names of running values within an epoch start with `step/`.

    Attributes:
        package: the required package, which is also the name of the extra that installs it.
        replays: whether a resumed run starts with an empty record, and sends all epochs and running values again.
        patience: seconds to wait after the fit until everything has been sent.
        checkpoint: whether to send best.pt at the end.
    """

    main_only = True
    order = Phase.DRAW
    saves: ClassVar[tuple[str, ...]] = ("_id",)
    tracks = True
    package: ClassVar[str] = ""
    replays: ClassVar[bool] = False
    patience: ClassVar[float] = 60.0
    checkpoint: bool = False
    _id: str | None = None
    _worker: CallQueue | None = None
    _started: bool = False
    _warned: bool = False
    _last: StepRow | None = None
    _batch_sent: bool = False
    _of_epoch: Collection[str] = ()  # names of the values of the last epoch that was sent
    _names: Mapping[str, str] = MappingProxyType({})  # maps our names to the names in the service

    # --- what a tracker implements, called in its thread ---

    def start(self, run: TrackedRun) -> int | None:
        """Begin to track a run, or continue to track a resumed run.

        Returns:
            The last epoch that the service already has, from 1, or -1 if it has none. The tracker sends all later
            epochs. None: unknown. The tracker then sends old epochs only if it `replays`.
        """
        raise NotImplementedError

    def accepted(self, name: str) -> str:
        """Return a name that the service accepts. If two names become equal, the base class appends a number to one."""
        return name

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        """Send values by name.

        Args:
            values: the values, which may be NaN.
            step: number of training batches so far.
            epoch: the finished epoch of the values, from 1. None: they are running values.
        """
        raise NotImplementedError

    def image(self, name: str, file: Path, step: int) -> None:
        """Send a PNG."""

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Send rows of strings, numbers and RGB images."""

    def artifact(self, file: Path) -> None:
        """Send a file."""

    def reached(self, scores: Mapping[str, float], report: Path | None) -> None:
        """Send the final scores.

        Args:
            scores: metrics of both passes, such as `best/val_loss` of the best and `last/val_loss` of the last epoch.
            report: the file of the report. None: the run has no report.
        """

    def finish(self, status: str) -> None:
        """End the tracking. The status is finished, interrupted or failed."""

    # --- the events ---

    def check(self, model: nn.Module) -> None:
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:  # a plain folder of this name is not a package
            raise missing_package(self._key, self.package, self.package)

    def before_fit(self, learner: Learner) -> None:
        run, resumed = learner.run, self._id is not None and bool(_IDS.fullmatch(self._id))
        if not resumed:
            self._id = uuid4().hex
        assert self._id is not None
        tracked = TrackedRun(
            **vars(run) | {"name": run.name or (learner.folder.name if learner.folder else "")},
            id=self._id,
            resumed=resumed,
            named=(run.config.get("run") or {}).get("name") is not None,
            revision=_revision(learner.folder),
        )
        self._worker, self._started, self._warned, self._names = CallQueue(self._give_up), False, False, {}
        recorder = learner.find(Recorder)
        rows = []
        for count, row in enumerate(recorder.rows, start=1):
            end = Position(int(row["epoch"]) + 1)
            rows.append((_epoch_values(learner, count), learner.progress.batches_before(end)))
        self._worker.add(partial(self._start, tracked, list(recorder.steps) if self.replays else [], rows))
        self._last = recorder.steps[-1] if recorder.steps else None
        self._batch_sent = False

    def after_batch(self, learner: Learner) -> None:
        """Send the running values of the training pass if the recorder has read new ones."""
        if learner.training:
            self._send_running(learner)

    def after_epoch(self, learner: Learner) -> None:
        """Send the last running values, the row of the epoch, and the best scores so far."""
        self._send_running(learner)
        values = _epoch_values(learner, len(learner.find(Recorder).rows))
        self._send(partial(self._log_epoch, values, learner.progress.batches_done))
        self._send_batch(learner)

    def after_fit(self, learner: Learner) -> None:
        """Send the figure, wrong predictions and model of the best epoch, and wait until everything is sent."""
        self._send_batch(learner)
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.add(partial(self._send_outcome, learner))
        seconds = self.patience
        if self.checkpoint and learner.folder is not None and (learner.folder / BEST).is_file():
            seconds += (learner.folder / BEST).stat().st_size / 1e6
        if not worker.close(partial(self._finish, ending_of(learner)), seconds):
            self._warn(f"not everything was sent within {seconds:.0f} s after the fit, and the rest may be missing")

    # --- internals ---

    @property
    def _key(self) -> str:
        return f"callbacks.{name_in_config(type(self))}"

    def _send(self, work: Callable[[], None]) -> None:
        if self._worker is not None:
            self._worker.add(work)

    def _send_batch(self, learner: Learner) -> None:
        """Send the first batch once it has been drawn."""
        if not self._batch_sent and learner.folder is not None and (learner.folder / BATCH).is_file():
            self._batch_sent = True
            image = partial(self.image, BATCH_IMAGE, learner.folder / BATCH, learner.progress.batches_done)
            self._send(partial(self._attempt, BATCH_IMAGE, image))

    def _send_running(self, learner: Learner) -> None:
        steps = learner.find(Recorder).steps
        if steps and steps[-1] is not self._last:
            self._last = steps[-1]
            self._send(partial(self._log, _running(self._last), self._last.step))

    def _start(
        self, run: TrackedRun, steps: Sequence[StepRow], rows: Sequence[tuple[Mapping[str, float], int]]
    ) -> None:
        """Start, and send the values that the service lacks.

        `rows` are pairs: the values of an epoch, and the number of batches until the end of this epoch.
        """
        known = self.start(run)
        self._started = True
        if self.replays:
            known = -1
        for step in steps:
            self._log(_running(step), step.step)
        for values, batches in rows:
            if known is not None and values["epoch"] > known:
                self._log_epoch(values, batches)

    def _log_epoch(self, values: Mapping[str, float], step: int) -> None:
        self._of_epoch = self._named(values).keys()
        self._log(values, step, int(values["epoch"]))

    def _log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        self.send_each(lambda items: self.log(dict(items), step, epoch), list(self._named(values).items()))

    def _named(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return the values by names that the service accepts. Different names stay different."""
        for name in [name for name in values if name not in self._names]:
            accepted, taken = self.accepted(name), {*self._names.values()}
            same = (accepted, *(f"{accepted}_{number}" for number in range(2, len(taken) + 3)))
            self._names = {**self._names, name: next(one for one in same if one not in taken)}
        return {self._names[name]: value for name, value in values.items()}

    def send_each(self, send: Callable[[Sequence[T]], object], items: Sequence[T]) -> None:
        """Send items together. If the service rejects them, send them one by one, with one warning for rejected items.

        Raises:
            OSError: the service cannot be reached. Other errors with an OSError as their cause are also raised.
        """
        try:
            send(items)
        except Exception as error:
            if _is_connection_error(error):
                raise
            for item in items:
                self._attempt(str(item[0]) if isinstance(item, tuple) else str(item), partial(send, [item]))

    def _attempt(self, what: str, work: Callable[[], object]) -> None:
        """Send one value, image or file, and warn if that fails."""
        try:
            work()
        except Exception as error:
            log.info("%s: failed to send %s", self._key, what, exc_info=error)
            self._warn(f"failed to send {what!r}: {type(error).__name__}: {first_line(error)}")

    def _send_outcome(self, learner: Learner) -> None:
        step = learner.progress.batches_done
        rows = {"best": best_of(learner)[1], "last": (learner.find(Recorder).rows or [{}])[-1]}
        scores: dict[str, float] = {}
        for when, row in rows.items():
            scores |= {f"{when}/{key}": value for key, value in row.items() if key.startswith(("train_", "val_"))}
        reports = (learner.run.config.get("callbacks") or {}).get(REPORT.removesuffix(".html")) is not None
        report = (learner.folder / REPORT).resolve() if learner.folder and reports else None
        self._attempt("the scores of the run", partial(self.reached, self._named(scores), report))
        best = best_model(learner)
        if learner.folder is None or best is None:
            return
        figure = learner.folder / learner.task.figure_file
        if figure.is_file():
            self._attempt(figure.stem, partial(self.image, figure.stem, figure, step))
        has_table = type(self).table is not Tracker.table
        if has_table and (mistakes := _mistakes(learner, best)):
            head = ("image", "true", "predicted", "confidence", "file")
            self._attempt(MISTAKES_TABLE, partial(self.table, MISTAKES_TABLE, head, mistakes, step))
        if self.checkpoint:
            self._attempt(BEST, partial(self.artifact, learner.folder / BEST))

    def _finish(self, status: str) -> None:
        if self._started:
            self.finish(status)

    def _give_up(self, error: BaseException) -> None:
        log.info("%s: failed", self._key, exc_info=error)
        self._warn(f"the run continues without this tracker: {type(error).__name__}: {first_line(error)}")

    def _warn(self, text: str) -> None:
        """Warn once per fit."""
        if not self._warned:
            self._warned = True
            log.warning("%s: %s", self._key, text)
            sys.stderr.write(printable(f"warning: {self._key}: {text}.\n"))


def _revision(folder: Path | None) -> str:
    """Return the git revision in the environment.json of a run folder."""
    try:
        git = read_object(folder / ENVIRONMENT_FILE).get("git") if folder else None
    except (OSError, UserError):
        git = None
    return str(git.get("revision", "")) if isinstance(git, dict) else ""


def _from_1(row: Mapping[str, float]) -> dict[str, float]:
    """Return a row of the recorder with epochs that count from 1."""
    return {key: value + 1 if key == "epoch" else value for key, value in row.items()}


def _epoch_values(learner: Learner, count: int) -> dict[str, float]:
    """Return the values to send after a number of epochs: the last row, and the best score so far."""
    recorder, monitor = learner.find(Recorder), best_of(learner)[0]
    rows = recorder.rows[recorder.since if count > recorder.since else 0 : count]
    best = _from_1(best_row(rows, monitor))
    return _from_1(rows[-1]) | {f"best/{key}": best[key] for key in ("epoch", monitor) if key in best}


def _running(row: StepRow) -> dict[str, float]:
    values = {"loss": row.loss, "images_per_second": row.images_per_second, **row.rates}
    return {f"step/{name}": value for name, value in values.items()}


def _is_connection_error(error: BaseException | None) -> bool:
    """Return whether an OSError, such as a lost connection, caused an error."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error is not None


def _mistakes(learner: Learner, best: BestModel) -> list[list[Cell]]:
    """Return the worst predictions of the best epoch for readable validation images, the worst first."""
    if best.samples is None:
        return []
    samples = learner.task.samples(**best.samples)
    found = worst_images(learner.task, samples, learner.classes, learner.run.val_files, _MAX_MISTAKES)
    rows: list[list[Cell]] = []
    for wrong, file, image in found or ():
        if image is not None:
            texts = (as_bytes(text).decode(errors="replace") for text in (wrong.true, wrong.predicted))
            confidence = "" if wrong.confidence is None else wrong.confidence
            rows.append([image, *texts, confidence, as_bytes(portable_name(file)).decode(errors="replace")])
    return rows
