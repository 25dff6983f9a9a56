"""Callbacks: what may happen around each level of the training loop, and how a callback cuts a level short."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar

from augment.errors import UserError, suggest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.learner import Learner


class Cancel(Exception):  # noqa: N818  (no error: a way to leave a level)
    """Base of the exceptions by which a callback leaves a level of the loop cleanly; its after event still runs.

    In that event, as anywhere outside of the level, there is nothing to leave: there it is an error like any other.
    """


class CancelFit(Cancel):
    """End the fit now."""


class CancelEpoch(Cancel):
    """Go on with the next epoch."""


class CancelTrain(Cancel):
    """End the pass over the training data; validation follows."""


class CancelValidate(Cancel):
    """End the pass over the validation data."""


class CancelBatch(Cancel):
    """Go on with the next batch; a step that was due with this one is left out, as by `CancelStep`."""


class CancelStep(Cancel):
    """Leave out the optimizer's step; the gradients stay and add up."""


CANCELS: Mapping[str, type[Cancel]] = {
    "fit": CancelFit,
    "epoch": CancelEpoch,
    "train": CancelTrain,
    "validate": CancelValidate,
    "batch": CancelBatch,
    "step": CancelStep,
}
EVENTS = tuple(f"{when}_{level}" for level in CANCELS for when in ("before", "after"))


class Callback:
    """Base of all callbacks. Override the events that matter; each gets the learner and may read everything of it.

    A callback that carries something from batch to batch or epoch to epoch saves it in `state_dict`, so that a resumed
    run equals one that was never stopped.

    Attributes:
        order: callbacks run in ascending order, equal ones in the order they were given.
    """

    order: ClassVar[int] = 0

    def before_fit(self, learner: "Learner") -> None:
        """Before anything else, once."""

    def before_epoch(self, learner: "Learner") -> None:
        """Before each epoch; `learner.epoch` is its number, from 0."""

    def before_train(self, learner: "Learner") -> None:
        """Before the pass over the training data, also if a resumed epoch has little or nothing left of it."""

    def before_validate(self, learner: "Learner") -> None:
        """Before the pass over the validation data; `learner.training` is false until after_validate."""

    def before_batch(self, learner: "Learner") -> None:
        """Before the forward pass, in either pass; `learner.batch` is there."""

    def before_step(self, learner: "Learner") -> None:
        """Between the backward pass and the optimizer's step: the gradients are there, to be changed in place."""

    def after_step(self, learner: "Learner") -> None:
        """After the optimizer's step."""

    def after_batch(self, learner: "Learner") -> None:
        """After a batch, in either pass; `learner.output` and `learner.loss` are there, on the device.

        The next batch may write over them: clone what is kept.
        """

    def after_train(self, learner: "Learner") -> None:
        """After the pass over the training data."""

    def after_validate(self, learner: "Learner") -> None:
        """After the pass over the validation data."""

    def after_epoch(self, learner: "Learner") -> None:
        """After each epoch, training and validation."""

    def after_fit(self, learner: "Learner") -> None:
        """After everything, once, also if the fit failed; `learner.error` says whether it did."""

    def check(self, model: "nn.Module") -> None:
        """Say before anything is written that the callback cannot work with a model, which has no memory yet.

        Raises:
            UserError: names the key path, what was given and what is allowed.
        """

    def evaluated_state(self, learner: "Learner") -> "dict[str, Tensor] | None":
        """Return the state of the model that validation scores, if that is not the one which is trained."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""


def check_events(callback: Callback) -> None:
    """Refuse a callback with a method that looks like an event but is none.

    Raises:
        UserError: names the method and the nearest event.
    """
    for name in dir(callback):
        if name.startswith(("before_", "after_")) and name not in EVENTS:
            raise UserError(f"{type(callback).__name__}.{name}: unknown event.{suggest(name, EVENTS)}")


def handles(callback: Callback, event: str) -> bool:
    """Say whether the callback does anything at the event."""
    return getattr_static(type(callback), event) is not getattr_static(Callback, event)


def in_order(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Check callbacks and sort them by `order`."""
    checked = list(callbacks)
    for callback in checked:
        check_events(callback)
    return tuple(sorted(checked, key=lambda callback: callback.order))


def named(callbacks: Iterable[Callback]) -> Iterator[tuple[str, Callback]]:
    """Yield callbacks by their class's name, a second one of a class as Name_2: as their states are kept."""
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
    """Write the training loop with every callback at its events, a line each, indented by level."""
    return "\n".join(_level_lines("fit", 0, tuple(callbacks)))


def _level_lines(level: str, depth: int, callbacks: tuple[Callback, ...]) -> Iterator[str]:
    def line(text: str) -> str:
        return "  " * depth + text

    def event(name: str) -> str:
        names = [type(callback).__name__ for callback in callbacks if handles(callback, name)]
        return line(f"{name}: {', '.join(names)}" if names else name)

    yield event(f"before_{level}")
    for part in _LOOP[level]:
        if part.startswith("{"):
            inner = depth + (2 if part[1:-1] in ("epoch", "batch") else 1)
            yield from _level_lines(part[1:-1], inner, callbacks)
        else:
            yield "  " * (depth + 1) + part
    yield event(f"after_{level}")
