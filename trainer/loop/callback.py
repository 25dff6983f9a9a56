"""Callbacks: events around each level of the training loop, and exceptions that end a level early."""

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
from augment.support.errors import UserError, suggest
from augment.support.lazy_torch import Tensor, nn

if TYPE_CHECKING:
    from augment.data.dataset import ImageRef


class Cancel(Exception):  # noqa: N818  (not an error)
    """Base of the exceptions by which a callback leaves a level of the loop cleanly; its after event still runs.

    If it is raised in that event, or anywhere else outside the level, it is an error like any other. Of several ranks,
    all have to raise it at the same time; see `trainer.loop.ranks.Ranks.agree`.
    """


class CancelFit(Cancel):
    """End the fit now."""


class CancelEpoch(Cancel):
    """Continue with the next epoch."""


class CancelTrain(Cancel):
    """End the pass over the training data; validation follows."""


class CancelValidate(Cancel):
    """End the pass over the validation data."""


class CancelBatch(Cancel):
    """Continue with the next batch; a step that was due with this one is skipped, as by `CancelStep`."""


class CancelStep(Cancel):
    """Skip the optimizer's step; the gradients are kept and add up."""


CANCELS: Mapping[str, type[Cancel]] = {
    "fit": CancelFit,
    "epoch": CancelEpoch,
    "train": CancelTrain,
    "validate": CancelValidate,
    "batch": CancelBatch,
    "step": CancelStep,
}
# Levels by words in the names of other libraries' hooks; the first one counts.
_LEVELS = {
    "batch": "batch",
    "step": "step",
    "val": "validate",
    "test": "validate",
    "train_epoch": "train",
    "epoch": "epoch",
}
EVENTS = tuple(f"{when}_{level}" for level in CANCELS for when in ("before", "after"))


class Phase(IntEnum):
    """When a callback runs at each event: callbacks of a phase run in the order in which they are given.

    An integer in between is a phase of its own: `order = 70` runs after what draws, and before what shows.
    """

    FIRST = -20  # changes what others see, such as the model's statistics
    MEASURE = -10  # measures, and sets what a batch is trained with
    DEFAULT = 0
    SAVE = 50  # writes what a resumed run needs
    DRAW = 60  # draws, and sends to trackers
    SHOW = 80  # prints, and reports
    LAST = 100  # may end the fit: callbacks after one that does miss the event


@dataclass(frozen=True)
class RunDescription:
    """What callbacks, such as experiment trackers, may want to know about the run that a fit is part of.

    Attributes:
        config: the whole configuration as plain values.
        group: name of the sweep that the run is part of.
        name: what people call the run; empty: it has only the name of its folder.
        tags: its tags.
        val_files: the validation images, in the order of their indices; empty: unknown.
        validation: what scores of the validation depend on, as plain values by the names of settings.
        notes: sentences about the model that people should read.
        began: when the run began, on the clock of `time.monotonic`.
        folder: where callbacks write; None: nowhere.
        classes: names of classes, labels or numbers; empty: the names that the training data have.
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


class Callback:
    """Base of all callbacks. Override the events you need.

    Each event receives the `trainer.Learner`. Its type is not declared here, because the learner's module imports this
    one. Annotate it as `trainer.Learner` in your own callbacks.

    A callback that keeps a state between batches or epochs names it in `saves`, so that a resumed run equals one that
    was never stopped. `learner.run` describes the run that the fit is part of.

    Attributes:
        order: callbacks run in ascending order, equal ones in the order they were given; see `Phase`.
        saves: names of the attributes that `state_dict` returns and `load_state_dict` restores.
        main_only: whether it only writes, prints or tracks, so that only rank 0 has it. Any other
            callback runs on all ranks, and must make the same decisions on all; see `trainer.loop.ranks`.
        per_rank: whether its state differs between ranks.
        tracks: whether it only sends what happens to an experiment tracker, so that two configurations that differ in
            it alone count as the same.
        reason: why it ended the fit before its last epoch; empty if it did not.
    """

    order: ClassVar[int] = Phase.DEFAULT
    saves: ClassVar[tuple[str, ...]] = ()
    main_only: ClassVar[bool] = False
    per_rank: ClassVar[bool] = False
    tracks: ClassVar[bool] = False
    reason: str = ""

    def before_fit(self, learner: Any) -> None:
        """Before anything else, once."""

    def before_epoch(self, learner: Any) -> None:
        """Before each epoch; `learner.progress.epoch` is its number, from 0."""

    def before_train(self, learner: Any) -> None:
        """Before the pass over the training data, also if a resumed epoch has little or nothing left of it."""

    def before_validate(self, learner: Any) -> None:
        """Before the pass over the validation data; `learner.training` is false until after_validate."""

    def before_batch(self, learner: Any) -> None:
        """Before the forward pass, in training and validation; `learner.batch` is set."""

    def before_step(self, learner: Any) -> None:
        """Between the backward pass and the optimizer's step; gradients may be changed in place."""

    def after_step(self, learner: Any) -> None:
        """After the optimizer's step."""

    def after_batch(self, learner: Any) -> None:
        """After a batch, in training and validation; `learner.output` and `learner.loss` are set, on the device.

        The next batch may overwrite them: clone what you keep.
        """

    def after_train(self, learner: Any) -> None:
        """After the pass over the training data."""

    def after_validate(self, learner: Any) -> None:
        """After the pass over the validation data."""

    def after_epoch(self, learner: Any) -> None:
        """After each epoch, training and validation."""

    def after_fit(self, learner: Any) -> None:
        """After everything, once, even if the fit failed; `learner.error` is then set."""

    def check(self, model: "nn.Module") -> None:
        """Check, before anything is written, that the callback works with a model on the device "meta".

        Raises:
            UserError: names the key path, what was given and what is allowed.
        """

    def evaluated_state(self, learner: Any) -> "dict[str, Tensor] | None":
        """Return the state of the model that validation scores, if it differs from the one that is trained."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as plain values and tensors."""
        return {name.lstrip("_"): getattr(self, name) for name in self.saves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.saves:
            setattr(self, name, state[name.lstrip("_")])


def handles(callback: Callback, event: str) -> bool:
    """Return whether the callback overrides the event."""
    return getattr_static(type(callback), event) is not getattr_static(Callback, event)


def in_order(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Check callbacks and sort them by `order`.

    Raises:
        UserError: one is not a callback, or has an unknown event.
    """
    checked: list[Any] = list(callbacks)
    for given in checked:
        kind = given if isinstance(given, type) else type(given)
        if not isinstance(given, Callback):
            what = f"the class {kind.__name__}" if kind is given else f"{given!r:.80}"
            near = f" Did you mean {kind.__name__}()?" if kind is given else ""
            raise UserError(f"callbacks: {what} is not allowed.{near} Allowed: objects of subclasses of Callback.")
        for name in dir(given):
            hook = name.startswith("on_") and callable(getattr(kind, name, None))
            if (hook or name.startswith(("before_", "after_"))) and name not in EVENTS:
                near = f" Did you mean '{_nearest(name)}'?" if hook else suggest(name, EVENTS)
                raise UserError(f"{kind.__name__}.{name}: unknown event.{near}")
    return tuple(sorted(checked, key=lambda callback: callback.order))


def _nearest(hook: str) -> str:
    """Return the event that is nearest to a hook of another library, such as on_train_epoch_end."""
    level = next((level for word, level in _LEVELS.items() if word in hook), "fit")
    return f"{'after' if hook.endswith('_end') or 'after' in hook else 'before'}_{level}"


def named(callbacks: Iterable[Callback]) -> Iterator[tuple[str, Callback]]:
    """Yield callbacks with the names of their states: the class's name, or Name_2 for the second one of a class."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}_{seen[name]}", callback


# What happens at each level, in order; a word in braces is a level of its own.
_LOOP: Mapping[str, tuple[str, ...]] = {
    "fit": ("for each epoch:", "{epoch}"),
    "epoch": ("{train}", "{validate}"),
    "train": ("for each batch:", "{batch}"),
    "batch": ("forward, loss; in training: backward", "{step}"),
    "step": ("optimizer step, zero gradients",),
    "validate": ("for each batch: forward, loss, with the events of a batch",),
}


def loop_text(callbacks: Iterable[Callback]) -> str:
    """Return a description of the training loop: a line for each event with its callbacks, indented by level."""
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
    """Return a read-only view of the registry: name in the configuration -> callback.

    Built-in callbacks are those in trainer/callbacks/*.py, and in `callback.py` of the other packages.
    """
    package = Path(__file__).parents[1]
    for file in sorted([*package.glob("callbacks/*.py"), *package.glob("*/callback.py")]):
        import_module(".".join(file.relative_to(package.parent).with_suffix("").parts))

    return MappingProxyType(_CALLBACKS)


def configurable(cls: C) -> C:
    """Register a callback, a dataclass of settings, for use in the `callbacks` section; GradClip becomes grad_clip."""
    _CALLBACKS[name_in_config(cls)] = cls
    return cls


def name_in_config(cls: type[Callback]) -> str:
    """Return the name that a registered callback has in the configuration."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def parse_callbacks(given: object) -> dict[str, dict[str, Any]]:
    """Check the `callbacks` section, `{name: {setting: value}}`, and return it with all defaults.

    A callback that is null is omitted, so that `callbacks.plots=null` switches off one of the defaults.

    Raises:
        UserError: an unknown callback or setting, or a value that is not allowed.
    """
    if not isinstance(given, Mapping):
        raise UserError(
            f"callbacks: {given!r} is not allowed. Allowed: a mapping of callbacks, such as grad_clip: {{}}."
        )
    complete = {}
    known = known_callbacks()
    for name, values in given.items():
        if name not in known:
            raise UserError(f"callbacks.{name}: unknown callback.{suggest(str(name), known)}")
        if isinstance(values, bool):
            allowed = "{}, which adds it, or a mapping of its settings; null, which leaves it out"
            raise UserError(f"callbacks.{name}: {values} is not allowed. Allowed: {allowed}.")
        if values is not None:
            complete[str(name)] = parse_params(settings(known[name]), values, f"callbacks.{name}")
    return complete
