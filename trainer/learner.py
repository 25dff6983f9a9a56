"""The training loop, as nested small methods; everything else that happens during training is a callback."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from augment.dataset import Task
from augment.loader import Batch
from trainer.batch_loader import BatchLoader, ResumableLoader
from trainer.callback import CANCELS, Callback, CancelFit, in_order, loop_text, named
from trainer.checkpoint import gradients_of, random_state, set_gradients, set_random_state
from trainer.graphs import Eager, Runner, Tensors
from trainer.losses import LossFunction
from trainer.stepping import Stepper
from trainer.tta import average

C = TypeVar("C", bound=Callback)


class Position(NamedTuple):
    """Where a fit stands: the epoch, and how many training batches of it have been fetched."""

    epoch: int = 0
    batch: int = 0


_START = Position()


class Group(NamedTuple):
    """The batches whose gradients make one step: the first one's number in the epoch, from 0, and how many they are."""

    first: int
    batches: int


class Learner:
    """Trains a model. Each attribute is assigned in one method only, so that one knows where it comes from.

    Where work is recorded (`trainer.graphs`), `output`, `loss` and the gradients are written over with the next batch:
    a callback that keeps one clones it. `batch` is always the loader's own.

    Args:
        model: maps (N, 3, size, size) images to (N, classes) outputs; is moved to the device, in channels_last memory.
        train_loader: training batches.
        val_loader: validation batches.
        optimizer: makes the optimizer from the model, after it was moved.
        loss_function: `(outputs, targets) -> scalar`, a mean over the batch.
        val_loss_function: the same for validation; None: the same one.
        epochs: passes over the training data.
        callbacks: see `trainer.callback`.
        device: where to train.
        bf16: run the forward pass in bfloat16 autocast.
        accumulate: batches whose gradients make one step, their mean; an epoch's last step may have fewer.
        runner: how a batch's work is run, see `trainer.graphs.runner`; None: eagerly.
        compile: compile the model with `torch.compile`, in place.
        limit_batches: batches of each pass at most.
        validate_every: epochs between two validations; the last epoch always has one.
        tta: views of each picture that validation averages, a name of `trainer.tta.TTA`.
        folder: where callbacks write; None: nowhere.
        classes: names of classes, labels or numbers, for pictures and tables.
        task: what the targets are; decides what is measured and how views are averaged.

    Raises:
        UserError: a callback with an unknown event.
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: BatchLoader,
        *,
        optimizer: Callable[[nn.Module], Optimizer],
        epochs: int,
        loss_function: LossFunction = nn.functional.cross_entropy,
        val_loss_function: LossFunction | None = None,
        callbacks: Iterable[Callback] = (),
        device: torch.device | None = None,
        bf16: bool = False,
        accumulate: int = 1,
        runner: Runner | None = None,
        compile: bool = False,
        limit_batches: int | None = None,
        validate_every: int = 1,
        tta: str = "none",
        folder: Path | None = None,
        classes: tuple[str, ...] = (),
        task: Task = "classify",
    ) -> None:
        self.callbacks = in_order(callbacks)
        self.device = device or torch.device("cpu")
        self.model: nn.Module = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compile:
            self.model.compile(dynamic=False)
        self.optimizer = optimizer(self.model)
        self.loss_function = loss_function
        self.val_loss_function = val_loss_function or loss_function
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.epochs = epochs
        self.bf16 = bf16
        self.accumulate = accumulate
        self.limit_batches = limit_batches
        self.validate_every = validate_every
        self.tta = tta
        self.folder = folder
        self.classes = classes
        self.task = task
        self._runner = runner or Eager()
        self._stepper = Stepper(self.optimizer, self._runner)
        self._share = torch.ones((), device=self.device)  # of a batch in the loss of its step

    # --- the loop ---

    def fit(self, start: Position = _START) -> None:
        """Train from `start`, by default from the beginning, to the last epoch."""
        self.error: BaseException | None = None
        self._advance(start)
        try:
            self._notify("before_fit")
            self._epochs()
        except CancelFit:
            pass
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._notify_all("after_fit", self.callbacks)

    def _epochs(self) -> None:
        for epoch in range(self.position.epoch, self.epochs):
            self._epoch(epoch)

    def _epoch(self, epoch: int) -> None:
        self.epoch = epoch
        due = (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs
        passes = (self._train, self.validate) if due else (self._train,)
        self._level("epoch", *passes, finish=lambda: self._advance(Position(epoch + 1)))

    def _train(self) -> None:
        self._mode(training=True)
        self._level("train", self._train_batches)

    def _train_batches(self) -> None:
        self._runner.enter("train", self.model)
        if self.accumulate > 1 and not self.position.batch:
            self._stepper.drop_gradients()  # of a step that the epoch before was left in
        for index, batch in self._fetch(self.train_loader, self.batches_in(self.epoch), self.position.batch):
            self._advance(Position(self.epoch, index + 1))
            step = (self._step,) if index + 1 == sum(self.group) else ()
            self._batch(batch, self._pass, *step)

    def validate(self) -> None:
        """Make one pass over the validation data; on its own it needs no fit around it."""
        self._mode(training=False)
        self._level("validate", self._validate_batches)

    @torch.inference_mode()
    def _validate_batches(self) -> None:
        self._runner.enter("validate", self.model)
        for _, batch in self._fetch(self.val_loader, self.batches(self.val_loader)):
            self._batch(batch, self._pass)

    def _batch(self, batch: Batch, *bodies: Callable[[], None]) -> None:
        self.batch = batch
        self._level("batch", *bodies)

    def _pass(self) -> None:
        kind, work = ("train", self._forward_backward) if self.training else ("validate", self._forward)
        if self.training:
            self._stepper.expect_gradients()
            if self.accumulate > 1:
                self._share.fill_(1 / self.group.batches)
        self.output, self.loss = self._runner.run(kind, work, self.batch.images, self.batch.targets)

    def _forward(self, images: Tensor, targets: Tensor) -> Tensors:
        # What autocast keeps of one pass must not be found by the recording of another.
        cache = not self._runner.captures
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=cache):
            output = average(self.model, images, "none" if self.training else self.tta, self.task)
        loss_function = self.loss_function if self.training else self.val_loss_function
        return output, loss_function(output.float(), targets)

    def _forward_backward(self, images: Tensor, targets: Tensor) -> Tensors:
        output, loss = self._forward(images, targets)
        scaled = loss * self._share if self.accumulate > 1 else loss
        self._stepper.backward(scaled)
        return output, loss

    def _step(self) -> None:
        self._level("step", self._stepper.step)

    # --- what the loop is made of ---

    def _level(self, level: str, *bodies: Callable[[], None], finish: Callable[[], None] | None = None) -> None:
        try:
            self._notify(f"before_{level}")
            for body in bodies:
                body()
        except CANCELS[level]:
            pass
        if finish:
            finish()
        self._notify(f"after_{level}")

    def _notify(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def _notify_all(self, event: str, callbacks: tuple[Callback, ...]) -> None:
        """Notify every callback, also those behind one that fails; the errors are chained."""
        if callbacks:
            try:
                getattr(callbacks[0], event)(self)
            finally:
                self._notify_all(event, callbacks[1:])

    def _fetch(self, loader: BatchLoader, count: int, done: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield a pass's batches with their numbers; `waited` are the seconds that the last one took to come."""
        batches = iter(loader)
        # The limit is asked first: no batch is fetched beyond it, and an epoch with nothing left fetches none.
        for index in range(done, count):
            asked = monotonic()
            batch = next(batches, None)
            self.waited = monotonic() - asked
            if batch is None:
                return
            yield index, batch

    def _mode(self, *, training: bool) -> None:
        self.training = training
        self.model.train(training)

    def _advance(self, position: Position) -> None:
        # Moves on when a batch is fetched, so that it always agrees with the loader's own state.
        self.position = position

    # --- what callbacks ask ---

    def batches(self, loader: BatchLoader) -> int:
        """Return the batches of a pass over the loader, the limit considered."""
        return self._limited(len(loader))

    def batches_in(self, epoch: int) -> int:
        """Return the training batches of an epoch, the limit considered."""
        return self._limited(self.train_loader.batches_in(epoch))

    @property
    def total_steps(self) -> int:
        """Training batches of the whole fit."""
        return self._steps_before[self.epochs]

    @property
    def step(self) -> int:
        """Number of the current training batch in the whole fit, from 0."""
        epoch, batch = self.position
        return self._steps_before[epoch] + batch - 1

    @cached_property
    def _steps_before(self) -> tuple[int, ...]:
        """Training batches before each epoch, and at last those of the whole fit."""
        return tuple(accumulate(map(self.batches_in, range(self.epochs)), initial=0))

    def _limited(self, batches: int) -> int:
        return batches if self.limit_batches is None else min(self.limit_batches, batches)

    @property
    def group(self) -> Group:
        """The batches that make one step with the current training batch."""
        first = (self.position.batch - 1) // self.accumulate * self.accumulate
        return Group(first, min(self.accumulate, self.batches_in(self.position.epoch) - first))

    def recapture(self) -> None:
        """Forget recorded work, after the model was changed within a pass: layers, what is trained, modes.

        Between passes the learner notices by itself. Values that change in place never need it.
        """
        self._runner.forget()
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                parameter.grad = None  # else the optimizer would go on with it, by momentum and decay

    def find(self, kind: type[C]) -> C:
        """Return the first callback of a kind.

        Raises:
            LookupError: there is none.
        """
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        raise LookupError(f"the learner has no {kind.__name__}")

    def evaluated_state(self) -> dict[str, Tensor]:
        """Return the state of the model that validation scores: of the first callback that has one, or its own."""
        states = (callback.evaluated_state(self) for callback in self.callbacks)
        return next((state for state in states if state is not None), self.model.state_dict())

    # --- saving ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed fit needs to go on as if it had never stopped."""
        return {
            "position": tuple(self.position),
            "model": self.model.state_dict(),
            "optimizer": self._stepper.state_dict(),
            "gradients": gradients_of(self.model) if self._stepper.pending else {},
            "loader": self.train_loader.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in named(self.callbacks)},
            "random": random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Position:
        """Take back what `state_dict` returned; return the position to give to `fit`."""
        self.model.load_state_dict(state["model"])
        self._stepper.load_state_dict(state["optimizer"])
        self.train_loader.load_state_dict(state["loader"])
        for name, callback in named(self.callbacks):
            if name in state["callbacks"]:  # one that the saved run had not starts afresh
                callback.load_state_dict(state["callbacks"][name])
        set_random_state(state["random"])
        gradients = state.get("gradients", {})
        set_gradients(self.model, gradients)
        self._stepper.pending = bool(gradients)
        position = Position(*state["position"])
        if not 0 < position.batch < self.batches_in(position.epoch):
            self.train_loader.end_pass()
        return position

    # --- showing ---

    def show_loop(self) -> None:
        """Print the loop with every callback at its events."""
        sys.stdout.write(loop_text(self.callbacks) + "\n")
