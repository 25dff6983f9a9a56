"""The callback that measures every pass, and writes a row of metrics for each epoch."""

import errno
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

from augment.support.errors import UserError
from augment.support.files import json_line, write_atomically
from augment.support.lazy_torch import torch
from augment.support.untrusted_files import append
from trainer.loop.callback import Callback, Phase
from trainer.loop.lazy_learner import Learner
from trainer.loop.progress import Position
from trainer.loop.ranks import current
from trainer.loop.settings import MAX_EPOCHS
from trainer.tasks.loss import weight_of
from trainer.tasks.meter import Meter
from trainer.tasks.metric import MetricsRow, Samples, TaskMetric
from trainer.tasks.task import AUTO

METRICS_FILE, STEPS_FILE = "metrics.jsonl", "steps.jsonl"

# Maximum number of rows in steps.jsonl. If there are more, every other row is dropped.
MAX_STEPS = 4000


class NonFiniteLossError(UserError):
    """A loss, or the gradients at every loss scale, are not finite, so the fit cannot continue."""


class StepRow(NamedTuple):
    """Running values of the training pass: a line of steps.jsonl."""

    seconds: float  # since the fit began, without the pause before a resumed run
    step: int  # number of training batches so far
    loss: float  # mean since the previous row, or since the epoch began
    images_per_second: float  # over the same period
    rates: Mapping[str, float] = MappingProxyType({})  # scheduled values of the last batch, such as "lr"

    def values(self) -> dict[str, float]:
        """Return the line of steps.jsonl."""
        values = self._asdict()
        del values["rates"]
        return {**values, **self.rates}


class Recorder(Callback):
    """Measures training and validation. Writes a row per epoch to metrics.jsonl, and running values to steps.jsonl.

    It reads the running values of the training pass every `interval` seconds. In between, it does not wait for the
    device.

    Args:
        interval: seconds between two reads.
        everything: whether to measure all metrics of the task. Otherwise, optional metrics are measured only if
            `LoopSettings.metrics` or the `monitor` of a callback names them.
    """

    order = Phase.MEASURE
    per_rank = True  # the state contains the sums of the current pass

    def __init__(self, interval: float = 0.5, *, everything: bool = False) -> None:
        self.interval, self.everything = interval, everything
        self.metrics: tuple[TaskMetric, ...] = ()  # metrics in addition to the loss
        self.rows: list[MetricsRow] = []  # a row for each finished epoch
        self.latest: MetricsRow = {}  # the running values when last read, with the key "images_per_second"
        self.val: MetricsRow = {}  # the values of the last validation pass
        self.samples: Samples | None = None  # predictions of the last validation pass for each sample
        self.first: tuple[float, int] | None = None  # `monotonic` time and number of the fit's first batch
        # A resumed run may validate with other settings. Scores are comparable from the row with index `since` on.
        # `validation` contains the settings that these scores depend on, see `RunDescription`.
        self.validation: Mapping[str, Any] = {}
        self.since = 0
        self.saved_ranks: int | None = None  # number of ranks of the resumed run, if known
        self.steps: list[StepRow] = []  # running values, the oldest first. A long run drops some of them.
        self._train: Meter | None = None
        self._loaded: dict[str, Any] | None = None
        self._row: MetricsRow = {}
        self._begun = 0.0
        self._seconds = 0.0  # seconds of the pass before an interruption, and of the whole pass once it has ended
        self._running = False  # whether the training pass is running

    def before_fit(self, learner: Learner) -> None:
        """Start the clock, and write the rows of the resumed run."""
        if learner.progress.position == Position():  # rows are left if this is not the learner's first fit
            self.rows, self.steps, self.since = [], [], 0
        if self.changed_validation(learner):
            self.since = len(self.rows)
        self.validation = dict(learner.run.validation)
        self.first = None
        self._begun = monotonic() - (self.steps[-1].seconds if self.steps else 0.0)
        if learner.folder:
            _write(self.rows, learner.folder / METRICS_FILE)
            self._inode = learner.folder.stat().st_ino
        self._choose_metrics(learner)

    def before_epoch(self, learner: Learner) -> None:
        """Clear the row of the previous epoch. Otherwise, an epoch that ends early would repeat values of that row."""
        self._row, self.val, self.samples = {"epoch": learner.progress.epoch}, {}, None

    def before_train(self, learner: Learner) -> None:
        """Start the clock of the pass. Reset the sums, unless an interrupted epoch continues."""
        metrics = self.metrics if learner.training_step is None else ()  # a training step returns only the loss
        self._train = Meter(learner.task, metrics, learner.device)
        self._seconds, self._running = 0.0, True
        if self._loaded is not None and learner.progress.position.batch:
            if self.saved_ranks in (None, learner.ranks.size):
                self._train.load_state_dict(self._loaded["meter"])
            self._seconds = self._loaded["seconds"]
        self._loaded = None
        self._start = self._read_at = monotonic()
        self._seen = self._before = self._train.samples
        self._total = self._train.compute()["loss"] * self._train.weight if self._seen else 0.0
        self._weight = self._train.weight
        self._waited = 0.0
        self._due = self._start  # read the first batch, so that users see a loss at once

    def before_validate(self, learner: Learner) -> None:
        if not self._row:  # outside a fit
            self._choose_metrics(learner)
        self._val = Meter(learner.task, self.metrics, learner.device, keep=True)

    def before_batch(self, learner: Learner) -> None:
        if learner.training:
            self._waited += learner.waited

    def after_batch(self, learner: Learner) -> None:
        """Add the batch to the sums, and read the running values if they are due."""
        if learner.loss is None or not learner.batch.share:
            return  # the batch was skipped, or only pads the pass
        meter = self._meter(learner)
        batch, task = learner.batch, learner.task
        targets = task.targets_of(batch)
        if not isinstance(targets, torch.Tensor) and not task.own_loss:
            raise UserError(
                f"Recorder: the targets are a {type(targets).__name__}, but metrics need a tensor. Yield a tensor, or "
                "remove the Recorder."
            )
        weight = weight_of(learner.loss_function if learner.training else learner.val_loss_function, targets)
        given = targets, batch.indices
        meter.update(learner.loss, learner.output, *given, frames=task.frames_of(batch), weight=weight)
        # The running values are from rank 0 only, so that no rank waits for another.
        if learner.training and learner.ranks.is_main and monotonic() >= self._due:
            self._read(learner, meter)

    def after_train(self, learner: Learner) -> None:
        """Add the values of the training pass to the row."""
        meter = self._meter(learner)
        values = self._read(learner, meter)
        if learner.ranks.size > 1:
            whole = meter.merged(learner.ranks.gather)
            values = whole.compute()
            _check_finite(learner, whole, values["loss"])
        seconds = monotonic() - self._start
        self._seconds, self._running = self._seconds + seconds, False
        # The speed leaves out images and time before an interruption. The seconds of the row include this time.
        seen = learner.ranks.size * (meter.samples - self._before)
        self._row |= {
            **{f"train_{name}": value for name, value in values.items()},
            "lr": float(learner.optimizer.param_groups[0]["lr"]),
            "seconds": self._seconds,
            "images_per_second": seen / seconds if seconds else 0.0,
        }
        # With a GPU, the host runs ahead. It then waits in the loader even if the loader is fast enough.
        if learner.device.type == "cpu":
            self._row["waiting"] = min(1.0, self._waited / seconds) if seconds else 0.0

    def after_validate(self, learner: Learner) -> None:
        meter = self._val if learner.ranks.size == 1 else self._val.merged(learner.ranks.gather)
        self.val = {f"val_{name}": value for name, value in meter.scores().items()}
        self.samples = meter.kept()
        if self._row:  # in a fit
            _check_finite(learner, meter, self.val.get("val_loss", 0.0))

    def after_epoch(self, learner: Learner) -> None:
        memory = {}
        if learner.device.type == "cuda":
            memory = {"gpu_memory_mib": torch.cuda.max_memory_allocated(learner.device) / 2**20}
        self.rows.append(self._row | self.val | memory)
        if learner.folder:
            # If the folder was deleted, writing would create it again with an incomplete run.
            if not learner.folder.is_dir() or learner.folder.stat().st_ino != self._inode:
                raise FileNotFoundError(errno.ENOENT, "deleted", str(learner.folder))
            _write([step.values() for step in self.steps], learner.folder / STEPS_FILE)
            append(learner.folder / METRICS_FILE, json_line(self.rows[-1]))

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, and the sums of the current training pass."""
        meter, seconds = None, 0.0
        if self._loaded is not None:  # no batch was trained since the state was loaded
            meter, seconds = self._loaded["meter"], self._loaded["seconds"]
        elif self._train is not None:
            running = monotonic() - self._start if self._running else 0.0
            meter, seconds = self._train.state_dict(), self._seconds + running
        return {
            "rows": [dict(row) for row in self.rows],
            "steps": [(*step[:-1], dict(step.rates)) for step in self.steps],
            "meter": meter,
            "seconds": seconds,
            "ranks": current().size,
            "validation": dict(self.validation),
            "since": self.since,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if max(len(state["rows"]), len(state["steps"])) > MAX_EPOCHS:
            raise ValueError(f"more than {MAX_EPOCHS:,} epochs")
        self.rows = [dict(row) for row in state["rows"]]
        self.steps = [StepRow(*step) for step in state["steps"]]
        for row in (*self.rows, *(step.values() for step in self.steps)):
            # Both calls raise an error for an invalid row. Otherwise, the error would come later, during the fit.
            json_line(row)
            sum(row.values())
        meter, seconds = state["meter"], float(state["seconds"])
        self._loaded = None if meter is None else {"meter": meter, "seconds": seconds}
        self.validation, self.since = state.get("validation", {}), int(state.get("since", 0))
        self.saved_ranks = state.get("ranks")

    def changed_validation(self, learner: Learner) -> tuple[str, ...]:
        """Return the validation settings that a resumed run has changed. Call this before the fit."""
        known = learner.run.validation
        return tuple(name for name, value in self.validation.items() if name in known and known[name] != value)

    def _choose_metrics(self, learner: Learner) -> None:
        monitors = [str(getattr(callback, "monitor", AUTO)) for callback in learner.callbacks]
        wanted = learner.ranks.broadcast([*learner.settings.metrics, *monitors])  # rank 0 may have more callbacks
        self.metrics = learner.task.measured(learner.classes, None if self.everything else wanted, learner.model)

    def _meter(self, learner: Learner) -> Meter:
        meter = self._train if learner.training else self._val
        assert meter is not None
        return meter

    def _read(self, learner: Learner, meter: Meter) -> MetricsRow:
        values = meter.compute()
        now = monotonic()
        if self.first is None:
            self.first = now, learner.progress.batches_done
        seen = learner.ranks.size * (meter.samples - self._seen)
        rate = seen / (now - self._read_at) if now > self._read_at else 0.0
        if meter.samples > self._seen:
            self.latest = values | {"images_per_second": rate}
            total = values["loss"] * meter.weight
            loss = (total - self._total) / (meter.weight - self._weight)
            # `ParamScheduler` has the rates. It cannot be imported here, because its module imports this one.
            scheduled = (getattr(callback, "current", None) for callback in learner.callbacks)
            rates = next((dict(values) for values in scheduled if isinstance(values, Mapping)), {})
            self.steps.append(StepRow(now - self._begun, learner.progress.batches_done, loss, rate, rates))
            if len(self.steps) > MAX_STEPS:
                del self.steps[1::2]
            self._total, self._weight = total, meter.weight
        self._read_at, self._seen, self._due = now, meter.samples, now + self.interval
        _check_finite(learner, meter, values["loss"])
        return values


def _check_finite(learner: Learner, meter: Meter, loss: float) -> None:
    if not meter.samples or not learner.ranks.is_main or math.isfinite(loss):
        return
    kind = "training" if learner.training else "validation"
    raise NonFiniteLossError(
        f"the {kind} loss is {loss} at {learner.progress}. Try a smaller fit.lr, or callbacks.grad_clip.max_norm=1."
        f"{' fit.precision=bf16 has the range of fp32.' if learner.settings.scaled else ''}"
    )


def _write(rows: Iterable[Mapping[str, float]], file: Path) -> None:
    write_atomically(file, "".join(map(json_line, rows)))
