"""Callbacks: events at each level of the training loop, and exceptions that end a level early."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from importlib import import_module
from inspect import getattr_static
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from augment.params import parse_params, settings
from augment.params.pixel_format import RGB, PixelFormat
from augment.support.errors import UserError, plugin_hint, suggest
from augment.support.lazy_torch import Tensor, nn

if TYPE_CHECKING:
    from augment.data.dataset import ImageRef


class Cancel(Exception):  # noqa: N818  (not an error)
    """Base of the exceptions that end a level of the loop: the fit, an epoch, a pass, a batch or a step.

    The `after_` event of the level still runs. If the exception is raised in this event, or outside its level, it ends
    the run with an error. All ranks must raise it at the same time, see `trainer.loop.ranks.Ranks.agree`.
    """


class CancelFit(Cancel):
    """End the fit at once."""


class CancelEpoch(Cancel):
    """Continue with the next epoch."""


class CancelTrain(Cancel):
    """End the pass over the training data. Validation follows."""


class CancelValidate(Cancel):
    """End the pass over the validation data."""


class CancelBatch(Cancel):
    """Continue with the next batch. A step that was due is skipped, as with `CancelStep`."""


class CancelStep(Cancel):
    """Skip the optimizer's step, but keep the gradients for the next step."""


CANCELS: Mapping[str, type[Cancel]] = {
    "fit": CancelFit,
    "epoch": CancelEpoch,
    "train": CancelTrain,
    "validate": CancelValidate,
    "batch": CancelBatch,
    "step": CancelStep,
}
EVENTS = tuple(f"{when}_{level}" for level in CANCELS for when in ("before", "after"))


class Phase(IntEnum):
    """The phases in which callbacks run at each event. Within a phase, they run in the order given.

    An `order` may be any integer. A callback with `order = 70` runs after `DRAW` and before `SHOW`.
    """

    FIRST = -20  # changes values that other callbacks read, such as the model's statistics
    MEASURE = -10  # measures, and sets the hyperparameters of a batch
    DEFAULT = 0
    SAVE = 50  # writes checkpoints
    DRAW = 60  # draws, and sends to trackers
    SHOW = 80  # prints, and reports
    LAST = 100  # may end the fit, so later callbacks may miss the event


@dataclass(frozen=True)
class RunDescription:
    """Describes the run that a fit belongs to, for callbacks such as experiment trackers.

    Attributes:
        config: the whole configuration as plain values.
        group: name of the run's sweep. None: the run belongs to no sweep.
        name: name of the run. Empty: the name of its folder.
        tags: the run's tags for trackers.
        val_files: the validation images, in the order of their indices. Empty: unknown.
        validation: settings that validation scores depend on, as plain values by name.
        notes: sentences about the model for the user.
        began: start time of the run, from `time.monotonic`.
        folder: the folder that callbacks write to. None: callbacks write nothing.
        classes: names of the classes, labels, numbers or keypoints. Empty: the names in the training data.
        pixels: the pixel format of the images.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    name: str = ""
    tags: tuple[str, ...] = ()
    val_files: "Sequence[ImageRef]" = ()
    validation: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    began: float = field(default_factory=monotonic)
    folder: Path | None = None
    classes: tuple[str, ...] = ()
    pixels: PixelFormat = RGB


class Callback:
    """Base of all callbacks. Override the events you need.

    Each event receives the learner. Annotate it as `trainer.Learner` in your own callbacks. Here it is `Any`, because
    the module of the learner imports this module.

    If a callback keeps a state between batches or epochs, list the attributes of this state in `saves`. Otherwise, a
    resumed run differs from an uninterrupted one.

    Attributes:
        order: callbacks run in ascending order, see `Phase`.
        saves: names of the attributes that `state_dict` returns and `load_state_dict` restores.
        main_only: whether only rank 0 has the callback. Set it if the callback only writes, prints or sends. Other
            callbacks run on all ranks, and must make the same decisions there, see `trainer.loop.ranks`.
        per_rank: whether its state differs between ranks.
        tracks: whether it only observes the run, as experiment trackers do. Two configurations count as equal if they
            differ only in such callbacks.
        reason: why the callback ended the fit early. Empty: it did not.
    """

    order: ClassVar[int] = Phase.DEFAULT
    saves: ClassVar[tuple[str, ...]] = ()
    main_only: ClassVar[bool] = False
    per_rank: ClassVar[bool] = False
    tracks: ClassVar[bool] = False
    reason: str = ""

    def before_fit(self, learner: Any) -> None:
        """Runs once, before anything else."""

    def before_epoch(self, learner: Any) -> None:
        """Runs before each epoch. `learner.progress.epoch` counts from 0."""

    def before_train(self, learner: Any) -> None:
        """Runs before the pass over the training data, even if a resumed epoch has no batches left."""

    def before_validate(self, learner: Any) -> None:
        """Runs before the pass over the validation data. `learner.training` is false until the next training pass."""

    def before_batch(self, learner: Any) -> None:
        """Runs before the forward pass, in training and validation. `learner.batch` is set."""

    def before_step(self, learner: Any) -> None:
        """Runs between the backward pass and the optimizer's step. Gradients may be changed in place."""

    def after_step(self, learner: Any) -> None:
        """Runs after the optimizer's step."""

    def after_batch(self, learner: Any) -> None:
        """Runs after each batch, in training and validation. `learner.output` and `learner.loss` are on the device.

        The next batch may overwrite them. Clone what you keep. If the batch was cancelled, the loss is None.
        """

    def after_train(self, learner: Any) -> None:
        """Runs after the pass over the training data."""

    def after_validate(self, learner: Any) -> None:
        """Runs after the pass over the validation data."""

    def after_epoch(self, learner: Any) -> None:
        """Runs after training and validation of each epoch."""

    def after_fit(self, learner: Any) -> None:
        """Runs once, after everything else, even if the fit failed. In that case, `learner.error` is set."""

    def check(self, model: "nn.Module") -> None:
        """Check the settings of the callback before the run writes anything. The model is on the device "meta".

        Raises:
            UserError: a setting does not work. The message starts with its key.
        """

    def evaluated_state(self, learner: Any) -> "dict[str, Tensor] | None":
        """Return the state of the validated model, such as averaged weights. None: the trained model is validated."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, as plain values and tensors."""
        return {name.lstrip("_"): getattr(self, name) for name in self.saves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.saves:
            setattr(self, name, state[name.lstrip("_")])


def handles(callback: Callback, event: str) -> bool:
    return getattr_static(type(callback), event) is not getattr_static(Callback, event)


def sort_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Check callbacks and sort them by `order`.

    Raises:
        UserError: one of them is not a callback, or has an unknown event.
    """
    checked: list[Any] = list(callbacks)
    for given in checked:
        kind = given if isinstance(given, type) else type(given)
        if not isinstance(given, Callback):
            if kind is given:
                raise UserError(f"callbacks: {kind.__name__} is a class. Pass an object, such as {kind.__name__}().")
            raise UserError(f"callbacks: {given!r:.80} is not a callback. Pass objects of subclasses of Callback.")
        for name in dir(given):
            hook = name.startswith("on_") and callable(getattr(kind, name, None))
            if (hook or name.startswith(("before_", "after_"))) and name not in EVENTS:
                near = f" Allowed: {', '.join(EVENTS)}." if hook else suggest(name, EVENTS)
                raise UserError(f"{kind.__name__}.{name}: unknown event.{near}")
    return tuple(sorted(checked, key=lambda callback: callback.order))


def with_keys(callbacks: Iterable[Callback]) -> Iterator[tuple[str, Callback]]:
    """Yield each callback with the key of its state: its class name, or Name_2 for the second callback of a class."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}_{seen[name]}", callback


# What happens at each level, in order. A word in braces is a nested level.
_LOOP: Mapping[str, tuple[str, ...]] = {
    "fit": ("for each epoch:", "{epoch}"),
    "epoch": ("{train}", "{validate}"),
    "train": ("for each batch:", "{batch}"),
    "batch": ("forward, loss; in training: backward", "{step}"),
    "step": ("optimizer step, zero gradients",),
    "validate": ("for each batch: forward, loss, with the events of a batch",),
}


def loop_text(callbacks: Iterable[Callback]) -> str:
    """Describe the training loop: one line for each event with its callbacks, indented by level."""
    return "\n".join(_level_lines("fit", 0, tuple(callbacks)))


def _level_lines(level: str, depth: int, callbacks: tuple[Callback, ...]) -> Iterator[str]:
    def event(name: str) -> str:
        names = [type(callback).__name__ for callback in callbacks if handles(callback, name)]
        return "  " * depth + (f"{name}: {', '.join(names)}" if names else name)

    yield event(f"before_{level}")
    for part in _LOOP[level]:
        if part.startswith("{"):
            inner = depth + (2 if part[1:-1] in ("epoch", "batch") else 1)
            yield from _level_lines(part[1:-1], inner, callbacks)
        else:
            yield "  " * (depth + 1) + part
    yield event(f"after_{level}")


C = TypeVar("C", bound=type[Callback])

_CALLBACKS: dict[str, type[Callback]] = {}


@cache
def known_callbacks() -> Mapping[str, type[Callback]]:
    """Return all configurable callbacks by their key in the configuration.

    Built-in callbacks are in `trainer/callbacks/*.py`, and in the `callback.py` of other packages.
    """
    package = Path(__file__).parents[1]
    for file in sorted([*package.glob("callbacks/*.py"), *package.glob("*/callback.py")]):
        import_module(".".join(file.relative_to(package.parent).with_suffix("").parts))

    return MappingProxyType(_CALLBACKS)


def configurable(cls: C) -> C:
    """Register a callback for the section `callbacks`. Its fields are settings. `GradClip` becomes `grad_clip`."""
    _CALLBACKS[name_in_config(cls)] = cls
    return cls


def name_in_config(cls: type[Callback]) -> str:
    """Return the key of a registered callback in the configuration."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def parse_callbacks(given: object) -> dict[str, dict[str, Any]]:
    """Check the section `callbacks`, `{name: {setting: value}}`, and return it with all defaults.

    A callback that is null is omitted, so `callbacks.plots=null` turns off a default callback.

    Raises:
        UserError: a callback or setting is unknown, or a value is not allowed.
    """
    if not isinstance(given, Mapping):
        raise UserError(f"callbacks: {given!r} is not a mapping. Write callbacks by name, such as grad_clip: {{}}.")
    complete = {}
    known = known_callbacks()
    for name, values in given.items():
        if name not in known:
            raise UserError(f"callbacks.{name}: unknown callback.{suggest(str(name), known)} {plugin_hint('callback')}")
        if isinstance(values, bool):
            values = {} if values else None
        if values is not None:
            complete[str(name)] = parse_params(settings(known[name]), values, f"callbacks.{name}")
    return complete
