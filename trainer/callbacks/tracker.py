"""The base of experiment trackers: what all of them are given, in a thread that training never waits for."""

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
from typing import TYPE_CHECKING, ClassVar, TypeVar
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
from trainer.loop.progress import Position
from trainer.tasks.registry import best_row

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

# Names of what all trackers get besides metrics.
BATCH_IMAGE, MISTAKES, MODEL = "batch", "wrong_predictions", "model"

ENVIRONMENT_FILE = "environment.json"  # in the folder of a run

_MOST_MISTAKES = 24
_IDS = re.compile(r"[0-9A-Za-z_-]{1,64}")  # a checkpoint may come from a stranger

log = logging.getLogger(__name__)

Cell = str | float | Image.Image
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrackedRun(RunDescription):
    """What a tracker is told about a run when it starts; name and tags are any texts.

    Attributes:
        id: an identifier of letters and digits; a resumed run keeps it.
        resumed: whether the tracker already knows the run, from before it was interrupted.
        named: whether the name was configured, not derived.
        revision: the git revision of this project; empty: unknown.
    """

    id: str
    resumed: bool
    named: bool
    revision: str = ""


class Tracker(Callback):
    """Base of experiment trackers: sends curves, images, wrong predictions and, if asked, best.pt.

    A tracker is a dataclass of settings that implements `start`, `log`, `reached`, `image`, `table`, `artifact` and
    `finish`. They are called in this order in one thread, while training continues; values are read where the recorder
    has read them, so that nothing waits for a GPU.

    A value, image or file that the backend rejects is left out, with one warning. Only an error in `start`, and an
    OSError while values are sent, such as a lost connection, end the tracking. No error ends the run.

    Names are those of metrics.jsonl for epochs, with `best/` before those of the best epoch so far, and with `step/`
    for running values within epochs.

    Attributes:
        package: the package that it needs, which is also the extra that installs it.
        replays: whether a resumed run starts an empty record, which gets all epochs and running values so far.
        patience: seconds to wait, once the fit is over, until everything has been sent.
        checkpoint: whether best.pt is sent at the end.
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
    _names: Mapping[str, str] = MappingProxyType({})  # names that were sent, by our own

    # --- what a tracker implements; called in its thread ---

    def start(self, run: TrackedRun) -> int | None:
        """Begin to track a run, or continue if it is a resumed one.

        Returns:
            The last epoch in the record, from 1, or -1; those that have ended since then are sent. None: unknown, and
            none is sent, unless the tracker `replays`.
        """
        raise NotImplementedError

    def accepted(self, name: str) -> str:
        """Return a name of a value as the backend accepts it; two names may become one, which `_named` resolves."""
        return name

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        """Send values by their names.

        Args:
            values: the values, which may be NaN.
            step: number of training batches so far.
            epoch: the finished epoch that they are about, from 1; None: they are running values.
        """
        raise NotImplementedError

    def image(self, name: str, file: Path, step: int) -> None:
        """Send a PNG."""

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Send rows of texts, numbers and RGB images."""

    def artifact(self, file: Path) -> None:
        """Send a file."""

    def reached(self, scores: Mapping[str, float], report: Path | None) -> None:
        """Send what the run reached.

        Args:
            scores: metrics of both passes, as `best/val_loss` in the best epoch, and as `last/val_loss` in the last.
            report: the file of the report; None: there is none.
        """

    def finish(self, status: str) -> None:
        """End the tracking of the run, which is finished, interrupted or failed."""

    # --- the events ---

    def check(self, model: nn.Module) -> None:
        """Check that the package is installed."""
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:  # a folder of that name, such as a run's, is none
            raise missing_package(self._key, self.package, self.package)

    def before_fit(self, learner: Learner) -> None:
        """Start the thread, and in it the tracking."""
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
        """Send the running values of the training pass if the recorder has read them since."""
        if learner.training:
            self._send_running(learner)

    def after_epoch(self, learner: Learner) -> None:
        """Send the last running values, the epoch's row, and what the best epoch reached so far."""
        self._send_running(learner)
        values = _epoch_values(learner, len(learner.find(Recorder).rows))
        self._send(partial(self._log_epoch, values, learner.progress.batches_done))
        self._send_batch(learner)

    def after_fit(self, learner: Learner) -> None:
        """Send figure, wrong predictions and model of the best epoch, and wait until everything has been sent."""
        self._send_batch(learner)
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.add(partial(self._send_outcome, learner))
        seconds = self.patience
        if self.checkpoint and learner.folder is not None and (learner.folder / BEST).is_file():
            seconds += (learner.folder / BEST).stat().st_size / 1e6
        if not worker.close(partial(self._finish, ending_of(learner)), seconds):
            self._warn(f"not everything was sent within {seconds:.0f} s after the fit; the rest is not waited for")

    # --- its parts ---

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
        """Start, and send what the record lacks: running values, and rows with the number of batches until then."""
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
        """Return values by names that the backend accepts, a different one for each of ours."""
        for name in [name for name in values if name not in self._names]:
            accepted, taken = self.accepted(name), {*self._names.values()}
            same = (accepted, *(f"{accepted}_{number}" for number in range(2, len(taken) + 3)))
            self._names = {**self._names, name: next(one for one in same if one not in taken)}
        return {self._names[name]: value for name, value in values.items()}

    def send_each(self, send: Callable[[Sequence[T]], object], items: Sequence[T]) -> None:
        """Send items together or, if the backend rejects them, one by one, and warn once of those that it rejects.

        Raises:
            OSError: or an error that one caused: the backend cannot be reached.
        """
        try:
            send(items)
        except Exception as error:
            if _has_lost(error):
                raise
            for item in items:
                self._attempt(str(item[0]) if isinstance(item, tuple) else str(item), partial(send, [item]))

    def _attempt(self, what: str, work: Callable[[], object]) -> None:
        """Send one thing, and warn if that fails."""
        try:
            work()
        except Exception as error:
            log.info("%s: failed to send %s", self._key, what, exc_info=error)
            self._warn(f"failed to send {what!r}, which its record lacks: {type(error).__name__}: {first_line(error)}")

    def _send_outcome(self, learner: Learner) -> None:
        step = learner.progress.batches_done
        epochs = {"best": best_of(learner)[1], "last": (learner.find(Recorder).rows or [{}])[-1]}
        found = ((f"{when}/{key}", value) for when, row in epochs.items() for key, value in row.items())
        scores = {name: value for name, value in found if name.split("/")[1].startswith(("train_", "val_"))}
        reports = (learner.run.config.get("callbacks") or {}).get(REPORT.removesuffix(".html")) is not None
        report = (learner.folder / REPORT).resolve() if learner.folder and reports else None
        self._attempt("the scores of the run", partial(self.reached, self._named(scores), report))
        best = best_model(learner)
        if learner.folder is None or best is None:
            return
        figure = learner.folder / learner.task.figure_file
        if figure.is_file():
            self._attempt(figure.stem, partial(self.image, figure.stem, figure, step))
        rows = _mistakes(learner, best)
        if rows:
            head = ("image", "true", "predicted", "confidence", "file")
            self._attempt(MISTAKES, partial(self.table, MISTAKES, head, rows, step))
        if self.checkpoint:
            self._attempt(BEST, partial(self.artifact, learner.folder / BEST))

    def _finish(self, status: str) -> None:
        if self._started:
            self.finish(status)

    def _give_up(self, error: BaseException) -> None:
        log.info("%s: failed", self._key, exc_info=error)
        self._warn(f"{type(error).__name__}: {first_line(error)}; the run continues without it")

    def _warn(self, text: str) -> None:
        """Warn once: what fails after the fit, which has waited for it long enough, is known."""
        if not self._warned:
            self._warned = True
            log.warning("%s: %s", self._key, text)
            sys.stderr.write(printable(f"warning: {self._key}: {text}.\n"))


def _revision(folder: Path | None) -> str:
    """Return the git revision in the description of a run's environment."""
    try:
        git = read_object(folder / ENVIRONMENT_FILE).get("git") if folder else None
    except (OSError, UserError):
        git = None
    return str(git.get("revision", "")) if isinstance(git, dict) else ""


def _from_1(row: Mapping[str, float]) -> dict[str, float]:
    """Return a row of the recorder, which counts epochs from 0, as people count them."""
    return {key: value + 1 if key == "epoch" else value for key, value in row.items()}


def _epoch_values(learner: Learner, count: int) -> dict[str, float]:
    """Return what is sent of the last of so many epochs: its row, and the best score until then."""
    recorder, monitor = learner.find(Recorder), best_of(learner)[0]
    rows = recorder.rows[recorder.since if count > recorder.since else 0 : count]
    best = _from_1(best_row(rows, monitor))
    return _from_1(rows[-1]) | {f"best/{key}": best[key] for key in ("epoch", monitor) if key in best}


def _running(row: StepRow) -> dict[str, float]:
    values = {"loss": row.loss, "images_per_second": row.images_per_second, **row.rates}
    return {f"step/{name}": value for name, value in values.items()}


def _has_lost(error: BaseException | None) -> bool:
    """Return whether an error is due to the system, such as a lost connection, and not to a value."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error is not None


def _mistakes(learner: Learner, best: BestModel) -> list[list[Cell]]:
    """Return the validation images that the best epoch gets most wrong, the worst first, those that can be read."""
    if best.samples is None:
        return []
    samples = learner.task.samples(**best.samples)
    found = worst_images(learner.task, samples, learner.classes, learner.run.val_files, _MOST_MISTAKES)
    return [
        [
            image,
            *(as_bytes(text).decode(errors="replace") for text in (wrong.true, wrong.predicted)),
            "" if wrong.confidence is None else wrong.confidence,
            as_bytes(portable_name(file)).decode(errors="replace"),
        ]
        for wrong, file, image in found or ()
        if image is not None
    ]
