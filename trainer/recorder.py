"""The recorder: measures every pass and writes one line of metrics an epoch."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor

from augment.errors import UserError
from augment.files import as_line
from trainer.callback import Callback
from trainer.learner import Learner
from trainer.metrics import Meter, Predictions
from trainer.outputs import OutputMeter, Outputs, make_meter
from trainer.tasks import Row

METRICS_FILE, LOOKS_FILE = "metrics.jsonl", "steps.jsonl"

# Keys of a row that differ between two runs of the same seed.
TIMES = ("seconds", "images_per_second", "waiting", "gpu_memory_mib")

# Looks that are kept of a run; of more, every other one goes.
MAX_LOOKS = 4000


class NonFiniteLossError(UserError):
    """The training loss is not a number any more; nothing that follows would mean anything."""


class Look(NamedTuple):
    """What the training pass was like at a look.

    Attributes:
        seconds: since the fit began; what came between an interruption and its end does not count.
        step: number of training batches so far.
        loss: mean since the look before, or since the epoch began.
        images_per_second: likewise.
    """

    seconds: float
    step: int
    loss: float
    images_per_second: float


class Recorder(Callback):
    """Measures both passes; keeps a row an epoch in `rows` and in metrics.jsonl, and looks in steps.jsonl.

    Between two looks, `interval` seconds apart, nothing waits for the device.

    Args:
        interval: seconds between looks at the running values of the training pass.

    Attributes:
        rows: a row for each finished epoch.
        latest: the running values at the last look, with the key "images_per_second".
        val: the values of the last validation pass.
        confusion: its confusion matrix, (classes, classes), rows are targets; None before there is one, and where
            pictures do not have one class each.
        samples: what it said of each sample; None before there is one.
        looks: the looks at the training passes, the oldest first; of a long run not all.
    """

    order = -10

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self.rows: list[Row] = []
        self.latest: Row = {}
        self.val: Row = {}
        self.confusion: Tensor | None = None
        self.samples: Predictions | Outputs | None = None
        self.looks: list[Look] = []
        self._train: Meter | OutputMeter | None = None
        self._measured: Tensor | None = None
        self._loaded: dict[str, Any] | None = None
        self._row: Row = {}
        self._begun = 0.0
        self._seconds = 0.0  # of the epoch's training pass: before it was interrupted, and all once it is over
        self._running = False  # whether the training pass is under way

    def before_fit(self, learner: Learner) -> None:
        """Start the fit's clock; write the rows that a resumed run brings with it."""
        self._begun = monotonic() - (self.looks[-1].seconds if self.looks else 0.0)
        if learner.folder:
            _write(self.rows, learner.folder / METRICS_FILE)

    def before_epoch(self, learner: Learner) -> None:
        """Forget the last row: an epoch that is cut short has only what it came to."""
        self._row, self.val, self.confusion = {"epoch": learner.epoch}, {}, None
        self.samples = None

    def before_train(self, learner: Learner) -> None:
        """Start the clock, and the sums unless they are those of an interrupted epoch."""
        self._train = make_meter(learner.task, len(learner.classes), learner.device)
        self._seconds, self._running = 0.0, True
        if self._loaded is not None and learner.position.batch:
            self._train.load_state_dict(self._loaded["meter"])
            self._seconds = self._loaded["seconds"]
        self._loaded = None
        self._start = self._looked = monotonic()
        self._seen = self._before = self._train.samples
        self._total = self._train.compute()["loss"] * self._seen if self._seen else 0.0
        self._waited = 0.0
        # At the first batch: what users want to see first is that the loss is there.
        self._due = self._start

    def before_validate(self, learner: Learner) -> None:
        """Start the sums of the validation pass."""
        self._val = make_meter(learner.task, len(learner.classes), learner.device, keep=True)

    def before_batch(self, learner: Learner) -> None:
        """Add the time that a training batch was waited for."""
        if learner.training:
            self._waited += learner.waited

    def after_batch(self, learner: Learner) -> None:
        """Add the batch; look at the training pass if it is time."""
        loss: Tensor | None = getattr(learner, "loss", None)
        if loss is None or loss is self._measured:
            return  # the batch was left out: what is there belongs to the one before
        self._measured = loss
        meter = self._meter(learner)
        meter.update(loss, learner.output, learner.batch.targets, learner.batch.indices)
        if learner.training and monotonic() >= self._due:
            self._look(learner, meter)

    def after_train(self, learner: Learner) -> None:
        """Close the training pass's part of the row."""
        meter = self._meter(learner)
        values = self._look(learner, meter)
        seconds = monotonic() - self._start
        self._seconds, self._running = self._seconds + seconds, False
        # The rate is that of this process; the seconds are the epoch's, also of the part before an interruption. Where
        # that came after the last batch, so that this process has trained nothing, the rate is the epoch's too.
        seen, took = meter.samples - self._before, seconds
        if not seen:
            seen, took = meter.samples, self._seconds
        self._row |= {
            **{f"train_{name}": value for name, value in values.items()},
            "lr": float(learner.optimizer.param_groups[0]["lr"]),
            "seconds": self._seconds,
            "images_per_second": seen / took if took else 0.0,
        }
        # With a GPU the host runs ahead of it, and waits in the loader for no fault of the loader's: see trainer.bench.
        if learner.device.type == "cpu":
            self._row["waiting"] = min(1.0, self._waited / seconds) if seconds else 0.0

    def after_validate(self, learner: Learner) -> None:
        """Close the validation pass's part of the row."""
        self.val = {f"val_{name}": value for name, value in self._val.scores().items()}
        self.confusion = self._val.confusion() if isinstance(self._val, Meter) else None
        self.samples = self._val.kept()

    def after_epoch(self, learner: Learner) -> None:
        """Write the row and the looks."""
        memory = {}
        if learner.device.type == "cuda":
            memory = {"gpu_memory_mib": torch.cuda.max_memory_allocated(learner.device) / 2**20}
        self.rows.append(self._row | self.val | memory)
        if learner.folder:
            _write([look._asdict() for look in self.looks], learner.folder / LOOKS_FILE)
            with (learner.folder / METRICS_FILE).open("a") as file:
                file.write(as_line(self.rows[-1]))

    def state_dict(self) -> dict[str, Any]:
        """Return the rows and the sums of the training pass that is under way."""
        looks = [tuple(look) for look in self.looks]
        state: dict[str, Any] = {
            "rows": [dict(row) for row in self.rows],
            "looks": looks,
            "meter": None,
            "seconds": 0.0,
        }
        if self._loaded is not None:
            # Nothing has been trained since: what was taken back is what there is.
            state |= {"meter": self._loaded["meter"], "seconds": self._loaded["seconds"]}
        elif self._train is not None:
            running = monotonic() - self._start if self._running else 0.0
            state |= {"meter": self._train.state_dict(), "seconds": self._seconds + running}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.rows = [dict(row) for row in state["rows"]]
        self.looks = [Look(*look) for look in state.get("looks", ())]
        self._loaded = state if state["meter"] is not None else None

    def _meter(self, learner: Learner) -> Meter | OutputMeter:
        meter = self._train if learner.training else self._val
        assert meter is not None
        return meter

    def _look(self, learner: Learner, meter: Meter | OutputMeter) -> Row:
        values = meter.compute()
        now = monotonic()
        rate = (meter.samples - self._seen) / (now - self._looked) if now > self._looked else 0.0
        if meter.samples > self._seen:
            self.latest = values | {"images_per_second": rate}
            total = values["loss"] * meter.samples
            loss = (total - self._total) / (meter.samples - self._seen)
            self.looks.append(Look(now - self._begun, learner.step + 1, loss, rate))
            if len(self.looks) > MAX_LOOKS:
                del self.looks[1::2]
            self._total = total
        self._looked, self._seen, self._due = now, meter.samples, now + self.interval
        if meter.samples and not math.isfinite(values["loss"]):
            raise NonFiniteLossError(
                f"the training loss is {values['loss']} at step {learner.step + 1} of {learner.total_steps} "
                f"(epoch {learner.epoch + 1}). A smaller fit.lr or callbacks.grad_clip.max_norm=1 may help."
            )
        return values


def _write(rows: Iterable[Mapping[str, float]], file: Path) -> None:
    file.write_text("".join(map(as_line, rows)))


def read_metrics(folder: Path) -> list[Row]:
    """Read the rows of a run folder; null becomes NaN.

    Raises:
        UserError: the folder has none.
    """
    file = folder / METRICS_FILE
    if not file.is_file():
        raise UserError(f"{folder}: no {METRICS_FILE} in it. Allowed: the folder of a run.")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: math.nan if value is None else value for key, value in row.items()} for row in rows]
