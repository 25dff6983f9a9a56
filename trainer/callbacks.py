"""The callbacks of a run, and the registry by which the `callbacks` section of the configuration names them."""

import math
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType
from typing import Any, TypeVar

from torch import nn

from augment.errors import UserError, suggest
from augment.params import Choice, Count, Number, parse_params, setting, settings
from trainer.callback import Callback, CancelFit
from trainer.checkpoint import BEST, LAST, save
from trainer.learner import Learner, Position
from trainer.optimizers import set_value
from trainer.recorder import Recorder
from trainer.schedule import Schedule, position
from trainer.tasks import ALL_MONITORED, AUTO, monitored, smaller_is_better

C = TypeVar("C", bound=type[Callback])

_CALLBACKS: dict[str, type[Callback]] = {}

# Read-only view: name in the configuration -> callback.
CALLBACKS: Mapping[str, type[Callback]] = MappingProxyType(_CALLBACKS)


def configurable(cls: C) -> C:
    """Register a callback, a dataclass of settings, for use in the `callbacks` section; GradClip becomes grad_clip."""
    _CALLBACKS[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()] = cls
    return cls


def parse_callbacks(given: object, key: str = "callbacks") -> tuple[Callable[[], Callback], ...]:
    """Check the `callbacks` section, `{name: {setting: value}}`, and return what makes each callback.

    A callback that is null is left out, so that `callbacks.plots=null` switches one of the defaults off.

    Raises:
        UserError: an unknown callback or setting, or a value that is not allowed.
    """
    return tuple(_maker(_CALLBACKS[name], values) for name, values in complete_callbacks(given, key).items())


def complete_callbacks(given: object, key: str = "callbacks") -> dict[str, dict[str, Any]]:
    """Check the `callbacks` section as `parse_callbacks` does; return it with all defaults, without those left out."""
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Allowed: a mapping of callbacks, as grad_clip: {{}}.")
    complete = {}
    for name, values in given.items():
        if name not in _CALLBACKS:
            raise UserError(f"{key}.{name}: unknown callback.{suggest(str(name), _CALLBACKS)}")
        if values is not None:
            complete[str(name)] = parse_params(settings(_CALLBACKS[name]), values, f"{key}.{name}")
    return complete


def _maker(cls: type[Callback], values: dict[str, Any]) -> Callable[[], Callback]:
    return lambda: cls(**values)


class ParamScheduler(Callback):
    """Sets hyperparameters of the optimizer before every step, from the position in the whole fit.

    Args:
        schedules: for each key of the optimizer's parameter groups, as "lr", its schedule. See
            `trainer.optimizers.set_value`.
    """

    order = -5

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self.schedules = dict(schedules)

    def before_batch(self, learner: Learner) -> None:
        """Set them, in training."""
        if learner.training:
            # Of the first of the batches that make a step, so that it depends on the step alone.
            ahead = learner.position.batch - 1 - learner.group.first
            now = position(learner.step - ahead, learner.total_steps)
            for group in learner.optimizer.param_groups:
                for name, schedule in self.schedules.items():
                    set_value(group, name, schedule(now))


class Interrupt(Callback):
    """Turns Ctrl-C into a clean end: the batch is finished, and what comes after the fit still happens.

    A second Ctrl-C stops at once.

    Attributes:
        pressed: whether it happened.
    """

    order = 90

    def __init__(self) -> None:
        self.pressed = False
        self._previous: Any = None

    def before_fit(self, learner: Learner) -> None:
        """Take the signal over; only a main thread can."""
        self.pressed = False
        try:
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:
            self._previous = None

    def after_batch(self, learner: Learner) -> None:
        """End the fit if it was pressed."""
        if self.pressed:
            raise CancelFit

    def after_fit(self, learner: Learner) -> None:
        """Give the signal back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        signal.signal(signal.SIGINT, self._previous)


@configurable
@dataclass(eq=False)
class GradClip(Callback):
    """Scales the gradients down if their total norm exceeds a limit (Pascanu et al. 2013)."""

    max_norm: float = setting(Number(default=1.0, within=(0, 1e9), above=0, doc="largest norm of all gradients"))

    def before_step(self, learner: Learner) -> None:
        """Clip; without a check for NaN, which would wait for the device."""
        nn.utils.clip_grad_norm_(learner.model.parameters(), self.max_norm, error_if_nonfinite=False)


@configurable
@dataclass(eq=False)
class Checkpoint(Callback):
    """Saves `last.pt` every so many epochs and at the end, and `best.pt` when the monitored value improves.

    `last.pt` is all that a resumed run needs, `best.pt` the model that was validated, its figures and what it said of
    each picture.
    """

    monitor: str = setting(
        Choice(
            default=AUTO,
            options=ALL_MONITORED,
            doc="whose best value makes the best model; auto: val_accuracy, of labels val_map, of numbers val_loss",
        )
    )
    every: int = setting(Count(default=1, within=(1, 10**6), doc="epochs between two savings of last.pt"))
    order = 50
    best: float | None = field(default=None, init=False)
    best_epoch: int | None = field(default=None, init=False)
    _of: str | None = field(default=None, init=False)  # key of the row that `best` is a value of
    _saved: Position | None = field(default=None, init=False)

    def after_epoch(self, learner: Learner) -> None:
        """Save."""
        if learner.folder is None:
            return
        recorder = learner.find(Recorder)
        monitor = monitored(self.monitor, learner.task)
        if self._of not in (None, monitor):  # values of two kinds cannot be compared: the best is sought anew
            self.best = self.best_epoch = None
        self._of = monitor
        value = recorder.rows[-1].get(monitor)
        if value is not None and self._improves(value, smaller=smaller_is_better(monitor)):
            self.best, self.best_epoch = value, learner.epoch
            best = {
                "model": learner.evaluated_state(),
                "row": dict(recorder.rows[-1]),
                "confusion": recorder.confusion,
                "samples": None if recorder.samples is None else dict(vars(recorder.samples)),
                "classes": list(learner.classes),
                "task": learner.task,
            }
            save(best, learner.folder / BEST)
        if (learner.epoch + 1) % self.every == 0:
            self._save_last(learner)

    def after_fit(self, learner: Learner) -> None:
        """Save an interrupted epoch; what a failed fit leaves behind is not worth going on from."""
        if learner.folder is not None and learner.error is None and learner.position != self._saved:
            self._save_last(learner)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self.best, "best_epoch": self.best_epoch, "of": self._of}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.best, self.best_epoch, self._of = state["best"], state["best_epoch"], state.get("of")

    def _improves(self, value: float, *, smaller: bool) -> bool:
        if self.best is None or math.isnan(self.best):
            return self.best is None or not math.isnan(value)
        return value < self.best if smaller else value > self.best

    def _save_last(self, learner: Learner) -> None:
        assert learner.folder is not None
        save(learner.state_dict(), learner.folder / LAST)
        self._saved = learner.position
