"""The training loop, as nested small methods; everything else that happens during training is a callback."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from augment.loader import Batch
from trainer.callback import CANCELS, Callback, CancelFit, in_order, loop_text
from trainer.tta import average

C = TypeVar("C", bound=Callback)


class BatchLoader(Protocol):
    """What the loop needs of a loader: its exact length, and an epoch a pass."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


class ResumableLoader(BatchLoader, Protocol):
    """What saving and resuming a fit need besides; see `augment.loader.Loader`."""

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


class Position(NamedTuple):
    """Where a fit stands: the epoch, and how many training batches of it have been fetched."""

    epoch: int = 0
    batch: int = 0


_START = Position()


class Learner:
    """Trains a model. Each attribute is assigned in one method only, so that one knows where it comes from.

    Args:
        model: maps (N, 3, size, size) images to (N, classes) outputs; is moved to the device, in channels_last memory.
        train_loader: training batches.
        val_loader: validation batches.
        optimizer: makes the optimizer from the model, after it was moved.
        loss_function: `(outputs, targets) -> scalar`, a mean over the batch.
        epochs: passes over the training data.
        callbacks: see `trainer.callback`.
        device: where to train.
        bf16: run the forward pass in bfloat16 autocast.
        limit_batches: batches of each pass at most.
        tta: views of each picture that validation averages, a name of `trainer.tta.TTA`.
        folder: where callbacks write; None: nowhere.
        classes: class names, for pictures and tables.

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
        loss_function: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
        callbacks: Iterable[Callback] = (),
        device: torch.device | None = None,
        bf16: bool = False,
        limit_batches: int | None = None,
        tta: str = "none",
        folder: Path | None = None,
        classes: tuple[str, ...] = (),
    ) -> None:
        self.callbacks = in_order(callbacks)
        self.device = device or torch.device("cpu")
        self.model: nn.Module = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer(self.model)
        self.loss_function = loss_function
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.epochs = epochs
        self.bf16 = bf16
        self.limit_batches = limit_batches
        self.tta = tta
        self.folder = folder
        self.classes = classes

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
        self._level("epoch", self._train, self.validate, finish=lambda: self._advance(Position(epoch + 1)))

    def _train(self) -> None:
        self._mode(training=True)
        self._level("train", self._train_batches)

    def _train_batches(self) -> None:
        done, count = self.position.batch, self.batches(self.train_loader)
        # zip asks the range first: no batch is fetched beyond the limit, and an epoch with nothing left fetches none.
        for index, batch in zip(range(done, count), self.train_loader, strict=False):
            self._advance(Position(self.epoch, index + 1))
            self._batch(batch, self._forward, self._backward)

    def validate(self) -> None:
        """Make one pass over the validation data; on its own it needs no fit around it."""
        self._mode(training=False)
        self._level("validate", self._validate_batches)

    @torch.inference_mode()
    def _validate_batches(self) -> None:
        for _, batch in zip(range(self.batches(self.val_loader)), self.val_loader, strict=False):
            self._batch(batch, self._forward)

    def _batch(self, batch: Batch, *passes: Callable[[], None]) -> None:
        self.batch = batch
        self._level("batch", *passes)

    def _forward(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            self.output = average(self.model, self.batch.images, "none" if self.training else self.tta)
        self.loss = self.loss_function(self.output.float(), self.batch.targets)

    def _backward(self) -> None:
        self.loss.backward()  # type: ignore[no-untyped-call]
        self._level("step", self._step)

    def _step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

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

    def _mode(self, *, training: bool) -> None:
        self.training = training
        self.model.train(training)

    def _advance(self, position: Position) -> None:
        # Moves on when a batch is fetched, so that it always agrees with the loader's own state.
        self.position = position

    # --- what callbacks ask ---

    def batches(self, loader: BatchLoader) -> int:
        """Return the batches of a pass over the loader, the limit considered."""
        return len(loader) if self.limit_batches is None else min(self.limit_batches, len(loader))

    @property
    def total_steps(self) -> int:
        """Training batches of the whole fit."""
        return self.epochs * self.batches(self.train_loader)

    @property
    def step(self) -> int:
        """Number of the current training batch in the whole fit, from 0."""
        epoch, batch = self.position
        return epoch * self.batches(self.train_loader) + batch - 1

    def find(self, kind: type[C]) -> C:
        """Return the first callback of a kind.

        Raises:
            LookupError: there is none.
        """
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        raise LookupError(f"the learner has no {kind.__name__}")

    # --- saving ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed fit needs to go on as if it had never stopped."""
        return {
            "position": tuple(self.position),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.train_loader.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in self._named_callbacks()},
            "random": _random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Position:
        """Take back what `state_dict` returned; return the position to give to `fit`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.train_loader.load_state_dict(state["loader"])
        for name, callback in self._named_callbacks():
            if name in state["callbacks"]:  # one that the saved run had not starts afresh
                callback.load_state_dict(state["callbacks"][name])
        _set_random_state(state["random"])
        position = Position(*state["position"])
        if not 0 < position.batch < self.batches(self.train_loader):
            self.train_loader.end_pass()
        return position

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Yield the callbacks by class name, a second one of a class as Name_2."""
        seen: Counter[str] = Counter()
        for callback in self.callbacks:
            name = type(callback).__name__
            seen[name] += 1
            yield name if seen[name] == 1 else f"{name}_{seen[name]}", callback

    # --- showing ---

    def show_loop(self) -> None:
        """Print the loop with every callback at its events."""
        sys.stdout.write(loop_text(self.callbacks) + "\n")


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any]) -> None:
    # Generators take their states from the host, wherever the checkpoint's tensors were put.
    torch.set_rng_state(state["cpu"].cpu())
    # A run that is resumed on a machine with other GPUs cannot have their dropout masks.
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([value.cpu() for value in state["cuda"]])
