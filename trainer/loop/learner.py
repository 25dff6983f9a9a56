"""The training loop, as small nested methods. Callbacks do everything else."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from augment.pipeline.batch import Batch
from trainer.loop.batch_runner import Runner
from trainer.loop.callback import CANCELS, Callback, CancelFit, RunDescription, loop_text, sort_callbacks, with_keys
from trainer.loop.checkpoint import FitState, random_state, set_random_state, to_host
from trainer.loop.cuda_graph_runner import make_runner
from trainer.loop.iterable import as_loader
from trainer.loop.objective import Objective, by_name, check_names, losses_of, make_optimizer
from trainer.loop.progress import FitProgress, Position
from trainer.loop.ranks import current
from trainer.loop.settings import LoopSettings
from trainer.models.lora import base_state, plain_state, trained_state
from trainer.tasks.registry import task_named

if TYPE_CHECKING:
    from augment.pipeline.loader import Loader
    from trainer.loop.progressive_resizing import StagedLoader

C = TypeVar("C", bound=Callback)
MakeOptimizer = Callable[[nn.Module], Optimizer]
_START, _OBJECTIVE = Position(), Objective()


def default_optimizer(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters())


class Learner:
    """Trains a model.

    With CUDA graphs (`trainer.loop.cuda_graphs`), the next batch overwrites `output`, `loss` and the gradients. Clone
    what you keep. `batch` stays intact, because the graphs work on a copy of it.

    Args:
        model: maps (N, C, height, width) images to outputs, such as (N, classes). It is moved to the device, in
            channels_last memory.
        train_loader: training batches: a loader, or any iterable of `(images, targets)`.
        val_loader: validation batches, in the same form. None: no validation.
        settings: settings of the loop. None: the defaults.
        optimizer: a function that takes the model, on its device, and returns the optimizer. For several optimizers, a
            mapping of such functions by name.
        objective: the task, its losses and training steps, see `trainer.loop.objective`.
        callbacks: see `trainer.loop.callback`.
        run: describes the run to callbacks.

    Attributes:
        progress: epochs, batches and steps so far and in total, see `trainer.loop.progress`.
        ranks: the processes that train the model together, see `trainer.loop.ranks`.
        optimizers, runners, training_steps: mappings by name. The name of a single optimizer is empty.
        optimizer, runner, training_step: the current entry of each. A runner computes passes and steps, see
            `trainer.loop.batch_runner`.

    Raises:
        UserError: a loader, callback or optimizer has a wrong type, or a callback has an unknown event.
    """

    # Each attribute is assigned in one method only, so that its origin is easy to find.

    # Makes the runner of the current optimizer.
    make_runner: Callable[["Learner"], Runner] = staticmethod(make_runner)

    def __init__(
        self,
        model: nn.Module,
        train_loader: "Loader | StagedLoader | Iterable[Any]",
        val_loader: "Loader | Iterable[Any] | None" = None,
        settings: LoopSettings | None = None,
        *,
        optimizer: MakeOptimizer | Mapping[str, MakeOptimizer] = default_optimizer,
        objective: Objective = _OBJECTIVE,
        callbacks: Iterable[Callback] = (),
        run: RunDescription | None = None,
    ) -> None:
        self.settings = settings or LoopSettings()
        self.callbacks = sort_callbacks(callbacks)
        self.device = self.settings.torch_device()
        self.settings.set_precision(self.device)
        self.model: nn.Module = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.settings.compile:
            self.model.compile(dynamic=False)
        self.optimizers = {name: make_optimizer(make, self.model) for name, make in by_name(optimizer).items()}
        self.training_steps = by_name(objective.training_step)
        check_names(self.training_steps, self.optimizers)
        self.train_loader = as_loader(train_loader, "train_loader", self.device, self.settings.accumulate)
        self.val_loader = as_loader(val_loader, "val_loader", self.device)
        self.progress = FitProgress(self.settings, self.train_loader)
        self.run = run or RunDescription()
        self.folder = self.run.folder
        self.classes = self.run.classes or tuple(getattr(self.train_loader, "classes", ()))
        self.task = task_named(objective.task) if isinstance(objective.task, str) else objective.task
        self.loss_function, self.val_loss_function = losses_of(objective, self.task, self.model, self.device)
        self.ranks = current()
        self.runners: dict[str, Runner] = {}
        for name in self.optimizers:
            self._select(name)
            self.runners[name] = self.make_runner(self)
        self._select(next(iter(self.runners)))
        self.ranks.copy_from_main((*self.model.parameters(), *self.model.buffers()))

    # --- the loop ---

    def fit(self, start: Position = _START, *, steps: int | None = None) -> None:
        """Train to the end of the fit.

        Args:
            start: the position to start from, as `restore` returns it.
            steps: length of the fit in optimizer steps. None: the length in the settings.
        """
        self.progress.start(start, steps)
        self._run_all(None, self._fit, *(partial(callback.after_fit, self) for callback in self.callbacks))

    def _fit(self) -> None:
        try:
            self._notify("before_fit")
            while not self.progress.is_complete:
                self._epoch(self.progress.position.epoch)
            self.ranks.gather(None)  # wait here for a rank that cancels late
        except CancelFit as cancel:
            self.ranks.cancel(cancel, self.progress.position)

    def _epoch(self, epoch: int) -> None:
        self.progress.epoch = epoch
        self.ranks.gather(None)  # wait here while rank 0 writes, because NCCL waits only ten minutes
        passes = (self._train, self.validate) if self.progress.validates(epoch) else (self._train,)
        self._level("epoch", *passes, finish=lambda: self.progress.move_to(Position(epoch + 1)))

    def _train(self) -> None:
        self._mode(training=True)
        self._level("train", self._train_batches)

    def _train_batches(self) -> None:
        progress = self.progress
        for runner in self.runners.values():
            runner.enter("train")
            if self.settings.accumulate > 1 and not progress.position.batch:
                runner.clear_gradients()  # a step of the previous epoch may be unfinished
        epoch, done = progress.epoch, progress.position.batch
        for index, batch in self._fetch(self.train_loader, progress.batches_in(epoch), done):
            progress.position = Position(epoch, index + 1)
            self._batch(batch, *(partial(self._train_batch, name) for name in self.runners))
            while self._deferred:
                self._deferred.pop(0)(self)

    def validate(self) -> None:
        """Make one pass over the validation data, if there is any. This also works outside a fit."""
        if self.val_loader is None:
            return
        self._mode(training=False)
        self._level("validate", self._validate_batches)

    @torch.inference_mode()
    def _validate_batches(self) -> None:
        self.runner.enter("validate")
        assert self.val_loader is not None
        for _, batch in self._fetch(self.val_loader, self.settings.limited(len(self.val_loader))):
            if batch.share:
                self._batch(batch, self._pass)

    def _batch(self, batch: Batch, *bodies: Callable[[], None]) -> None:
        self.batch = batch
        self.loss: Any = None  # a batch that is cancelled before its pass has no loss
        self._deferred: list[Callable[[Learner], None]] = []  # actions for the end of the batch
        self._level("batch", *bodies)

    def _train_batch(self, name: str) -> None:
        self._select(name)
        self._pass()
        if self.progress.ends_step:
            self._step()

    def _select(self, name: str) -> None:
        """Make an optimizer, its training step and its runner the current ones."""
        self.optimizer, self.training_step = self.optimizers[name], self.training_steps[name]
        self.optimizer_name = name
        if name in self.runners:
            self.runner: Runner = self.runners[name]

    def _pass(self) -> None:
        runner, batch = self.runner, self.batch
        self.output, self.loss = runner.train(batch, self.progress.share) if self.training else runner.validate(batch)

    def _step(self) -> None:
        with self.runner.gradients():
            self._level("step", self.runner.step)

    # --- building blocks of the loop ---

    def _level(self, level: str, *bodies: Callable[[], None], finish: Callable[[], None] | None = None) -> None:
        try:
            self._notify(f"before_{level}")
            for body in bodies:
                body()
        except CANCELS[level] as cancel:
            self.ranks.cancel(cancel, self.progress.position)
        if finish:
            finish()
        self._notify(f"after_{level}")

    def _notify(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def _run_all(self, error: BaseException | None, *calls: Callable[[], None]) -> None:
        """Call all functions, even if one fails. Store the first error in `self.error`. Errors are chained."""
        self.error = error
        for number, call in enumerate(calls, 1):
            try:
                call()
            except BaseException as failure:
                self._run_all(error or failure, *calls[number:])
                raise

    def _fetch(self, loader: Iterable[Batch], count: int, done: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of a pass with their indices. `waited` is the wait for the current batch, in seconds."""
        batches = iter(loader)
        # The count is checked first, so that no batch beyond the limit is fetched.
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

    # --- for callbacks ---

    def recapture(self) -> None:
        """Discard CUDA graphs.

        Call this if, within a pass, layers are replaced or change their mode, or parameters are frozen or unfrozen.

        The learner itself detects changes between passes. Values that change in place need no new graphs.
        """
        for runner in self.runners.values():
            runner.forget()

    def after_this_batch(self, action: Callable[["Learner"], None]) -> None:
        """Call a function once all callbacks have handled the current training batch, if the pass continues."""
        self._deferred.append(action)

    def find(self, kind: type[C]) -> C:
        """Return the first callback of a class.

        Raises:
            LookupError: the learner has no such callback.
        """
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        raise LookupError(f"the learner has no {kind.__name__}")

    def evaluated_state(self) -> dict[str, Tensor]:
        """Return the state of the validated model, from the first callback that provides it, or from the model.

        LoRA adapters are merged into the weights.
        """
        states = (callback.evaluated_state(self) for callback in self.callbacks)
        state = next((state for state in states if state is not None), self.model.state_dict())
        return plain_state(self.model, state)

    def show_loop(self) -> None:
        """Print the loop with every callback at its events."""
        sys.stdout.write(loop_text(self.callbacks) + "\n")

    # --- saving ---

    def state(self) -> FitState:
        """Return everything that a resumed fit needs to match an uninterrupted fit.

        All ranks must call this method. The result is complete on rank 0.
        """
        if not self.progress.position.batch:
            # `limit_batches` may have ended the pass early. End it, because any number of ranks can resume from a state
            # between two passes.
            self.train_loader.end_pass()
        own: dict[str, Any] = {
            "gradients": {k: v for runner in self.runners.values() for k, v in runner.kept_gradients().items()},
            "loader": self.train_loader.state_dict(),
            "random": random_state(self.device),
        }
        callbacks = {name: (callback, callback.state_dict()) for name, callback in with_keys(self.callbacks)}
        states = {name: runner.state_dict() for name, runner in self.runners.items()}
        per_rank = {name: state for name, (callback, state) in callbacks.items() if callback.per_rank}
        return FitState(
            position=(self.progress.position.epoch, self.progress.position.batch),
            model=trained_state(self.model),
            optimizer=states.get("", states),
            callbacks={name: state for name, (_, state) in callbacks.items()},
            others=self._others(own | {"callbacks": per_rank}),
            **own,
        )

    def _others(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the states of the other ranks. Before a step, batch-norm statistics also differ between ranks."""
        if self.ranks.size == 1:
            return []
        buffers = dict(self.model.named_buffers()) if any(runner.pending for runner in self.runners.values()) else {}
        return self.ranks.gather(cast(dict[str, Any], to_host(own | {"buffers": buffers})))[1:]

    def restore(self, state: FitState) -> Position:
        """Restore what the method `state` returned. Return the position to pass to `fit`.

        Raises:
            UserError: a different number of ranks saved the state within an optimizer step.
        """
        state.check_ranks(self.ranks.size)
        loaders = [state.loader, *(other["loader"] for other in state.others)]
        rank_existed = self.ranks.rank < state.ranks
        state = state.for_rank(self.ranks.rank)
        self.model.load_state_dict(base_state(self.model) | state.model)
        states = {"": state.optimizer} if "" in self.runners else state.optimizer
        for name, runner in self.runners.items():
            runner.load_state_dict(states[name], state.gradients if rank_existed else {})
            runner.pending = not runner.parameters.keys().isdisjoint(state.gradients)
        self.train_loader.load_state_dict(state.loader, loaders)
        for name, callback in with_keys(self.callbacks):
            if name in state.callbacks:  # a new callback starts without a state
                callback.load_state_dict(state.callbacks[name])
        if rank_existed:
            set_random_state(state.random, self.device)
        position = Position(*state.position)
        if not 0 < position.batch < self.progress.batches_in(position.epoch):
            self.train_loader.end_pass()
        return position
