"""Callbacks that control training: schedules, clipping, loss scaling, batch norms, early stopping, signals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from augment.params import Count, Number, setting
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.lazy_torch import Tensor, nn, torch
from augment.support.signals import StopSignals
from trainer.callbacks.checkpoint import best_of
from trainer.callbacks.recorder import NonFiniteLossError, Recorder
from trainer.loop.callback import Callback, CancelFit, Phase, configurable
from trainer.loop.lazy_learner import Learner
from trainer.loop.progress import Position
from trainer.optim.schedules import Schedule, drops, position
from trainer.tasks.registry import monitor_param, smaller_is_better
from trainer.tasks.task import AUTO

# After this number of batches, initial values contribute less than 1% to running statistics: 0.9 ** 50.
_FEW_BATCHES = 50

# The smallest normal number of float16. With a smaller loss scale, even gradients near 1 would vanish, so the scale is
# not the reason for values that are not finite.
_MIN_SCALE = 2.0**-14

STATISTICS, _COUNTER = ("running_mean", "running_var"), "num_batches_tracked"


class ParamScheduler(Callback):
    """Sets hyperparameters of all optimizers before each training batch, from the position in the fit.

    Args:
        schedules: schedules by keys of the optimizer's parameter groups, such as "lr". See
            `trainer.optim.optimizers.set_value`.
        plateau: a number of epochs, and a factor. "lr" is multiplied by the factor after that many epochs without a
            better score. None: no drops.

    Attributes:
        current: the values of the last training batch, by the keys of the schedules.
    """

    order = Phase.MEASURE

    def __init__(self, schedules: Mapping[str, Schedule], plateau: tuple[int, float] | None = None) -> None:
        self.schedules, self.plateau = dict(schedules), plateau
        self._factor = 1.0
        self.current: Mapping[str, float] = {}
        self._total_batches = 0  # batches in the fit. Until the first epoch, batches in the saved fit

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the schedules, for `describe_new_length`."""
        return {"steps": self._total_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the length of the schedules."""
        if "steps" not in state:
            raise UserError(
                "fit.resume: this run is from a version before 0.19. Resume it with that version, or start a new run "
                "with model.weights=RUN_FOLDER."
            )
        self._total_batches = state["steps"]

    def describe_new_length(self, learner: Learner, start: Position) -> str:
        """Describe how a new length of the fit changes the learning rate. Empty: the rate does not change.

        Args:
            learner: the learner, restored and before its fit.
            start: the position at which the fit starts.
        """
        progress = learner.progress
        rate, total, done = self.schedules["lr"], progress.total_batches, progress.batches_before(start)
        if done >= total or self._total_batches in (0, total) or len({rate(at / 100) for at in range(101)}) == 1:
            return ""
        was, now = rate(position(done - 1, self._total_batches)), rate(position(done, total))
        length = f"fit.steps={progress.steps}" if progress.steps else f"fit.epochs={progress.epochs}"
        highest = max(rate(position(step, total)) for step in range(done, total, max(1, (total - done) // 100)))
        return (
            f"{length} changes the length of the schedule: the learning rate goes from {was:.2g} to {now:.2g}, and is "
            f"at most {highest:.2g} from now on. To choose the rate, add fit.schedule=constant and fit.lr. For "
            "another cycle, start a new run with model.weights=RUN_FOLDER instead of fit.resume."
        )

    def before_epoch(self, learner: Learner) -> None:
        """Count the drops of the learning rate in all rows, so that a resumed run equals an uninterrupted run."""
        self._total_batches = learner.progress.total_batches
        if self.plateau is None:
            return
        rows, since = learner.find(Recorder).rows, learner.find(Recorder).since
        (key, _), (patience, factor) = best_of(learner), self.plateau
        sign = -1 if smaller_is_better(key) else 1
        scores = [sign * row.get(key, nan) for row in rows]
        # Scores before and after `since` are not comparable.
        count = drops(scores[:since], patience) + drops(scores[since:], patience)
        self._factor = factor ** learner.ranks.broadcast(count)

    def before_batch(self, learner: Learner) -> None:
        from trainer.optim.optimizers import set_value

        if learner.training:
            self.current = self.values(learner)
            for group in (group for optimizer in learner.optimizers.values() for group in optimizer.param_groups):
                for name, value in self.current.items():
                    set_value(group, name, value)

    def values(self, learner: Learner) -> dict[str, float]:
        """Return the scheduled values of the current training batch by key, without waiting for the device."""
        # All batches of a step use the position of its first batch.
        progress = learner.progress
        within_step = progress.position.batch - progress.step_batches.first
        now = position(progress.batches_done - within_step, progress.total_batches)
        values = {name: schedule(now) for name, schedule in self.schedules.items()}
        return values if self.plateau is None else values | {"lr": values["lr"] * self._factor}


@configurable
@dataclass(eq=False)
class GradClip(Callback):
    """Scales the gradients down if their total norm exceeds a limit (Pascanu et al. 2013)."""

    max_norm: float = setting(Number(default=1.0, within=(0, 1e9), above=0, doc="largest norm of all gradients"))

    def before_step(self, learner: Learner) -> None:
        """Clip the gradients. A check for NaN would wait for the device."""
        nn.utils.clip_grad_norm_(learner.runner.parameters.values(), self.max_norm, error_if_nonfinite=False)


class LossScale(Callback):
    """Stops the fit if the gradients are not finite at any loss scale (`trainer.loop.batch_runner.Scaler`)."""

    main_only = True
    order = Phase.MEASURE

    def after_train(self, learner: Learner) -> None:
        scalers = (runner.scaler for runner in learner.runners.values())
        if any(scaler is not None and scaler.get_scale() < _MIN_SCALE for scaler in scalers):
            raise NonFiniteLossError(
                f"fit.precision=fp16: the gradients are not finite at any loss scale, in {learner.progress}. "
                "Try a smaller fit.lr, or fit.precision=bf16, which has the range of fp32."
            )


class PrepareValidation(Callback):
    """Builds the pipeline of the next validation in the background during training."""

    order = Phase.MEASURE

    def after_batch(self, learner: Learner) -> None:
        """Start after the first batch of each epoch, so that the training pipeline is built first."""
        if learner.training and learner.progress.position.batch == 1 and learner.val_loader is not None:
            learner.val_loader.prepare()


class FreshStatistics(Callback):
    """Resets the running statistics of batch norms at the start of each epoch with few batches.

    At first, the statistics are the mean over all images of the epoch so far. When a step would weigh less in this mean
    than in the usual moving average, the statistics become the moving average. With PyTorch's default momentum, this is
    after ten batches. Without the reset, the statistics of a new model stay close to their initial values for about ten
    batches. After that, they lag behind weights that change fast.

    Args:
        always: also reset in epochs with many batches.
    """

    order = Phase.FIRST  # before callbacks that cancel the step
    saves = ("_before",)

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._before: dict[str, Tensor] = {}  # statistics before the current step, by name

    def before_batch(self, learner: Learner) -> None:
        """Copy the statistics at the first batch of a step."""
        if not learner.training or learner.progress.position.batch - 1 != learner.progress.step_batches.first:
            return
        on = self._always or learner.progress.batches_in(learner.progress.epoch) < _FEW_BATCHES
        norms = _norms(learner.model) if on else ()
        kept = (*STATISTICS, _COUNTER)
        self._before = {f"{name}.{key}": getattr(norm, key).clone() for name, norm in norms for key in kept}

    def before_step(self, learner: Learner) -> None:
        """Weight the step by its number of images. The statistics are already averaged over the ranks."""
        (first, batches), epoch = learner.progress.step_batches, learner.progress.epoch
        images_in = learner.train_loader.images_in
        share = images_in(epoch, first, batches) / images_in(epoch, 0, first + batches)
        # Without a reset, `_before` is empty. Earlier versions did not save the counters.
        norms = {name: norm for name, norm in _norms(learner.model) if f"{name}.{_COUNTER}" in self._before}
        for (name, norm), factor in zip(norms.items(), self._factors(norms, share), strict=True):
            for key in STATISTICS:
                now = getattr(norm, key)
                torch.lerp(self._before[f"{name}.{key}"], now, factor.to(now.dtype), out=now)
            norm.running_var.clamp_(min=0)  # rounding may make it negative
        self._before = {}

    def _factors(self, norms: Mapping[str, Any], share: float) -> list[Tensor]:
        """Return the factor of each norm's change in this step, () each, so that the step's images weigh `share`."""
        if not norms:
            return []
        # A model may use a norm several times for a batch, or not at all. Few operations on the GPU handle all norms.
        before = torch.stack([self._before[f"{name}.{_COUNTER}"] for name in norms])
        updates = torch.stack([norm.num_batches_tracked for norm in norms.values()]) - before
        by_momentum = {}
        for momentum in {norm.momentum for norm in norms.values()}:
            weights = 1 - (1 - momentum) ** updates.double()  # of the step in the moving average
            by_momentum[momentum] = (share / weights).clamp(1, 1 / momentum).float().unbind()
        return [by_momentum[norm.momentum][index] for index, norm in enumerate(norms.values())]


def _norms(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the batch norms that update a moving average, with their names."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    for name, module in model.named_modules():
        if isinstance(module, kinds) and module.training and module.momentum and module.running_mean is not None:
            yield name, module


@configurable
@dataclass(eq=False)
class EarlyStopping(Callback):
    """Ends the fit when the monitored metric has not improved for some epochs.

    The decision depends only on the recorder's rows, so that a resumed run equals an uninterrupted run. A fit ends only
    after an epoch that has the metric, but epochs without validation count towards the patience.
    """

    monitor: str = setting(monitor_param("metric that has to improve. auto: callbacks.checkpoint.monitor"))
    patience: int = setting(Count(default=10, within=(1, 10**6), doc="epochs without improvement that end the run"))
    min_delta: float = setting(
        Number(default=0.0, within=(0, 1e9), doc="changes up to this size do not count as improvements")
    )
    order = Phase.LAST
    reason: str = field(default="", init=False)  # see `Callback`

    def before_fit(self, learner: Learner) -> None:
        self.reason = ""

    def after_epoch(self, learner: Learner) -> None:
        recorder = learner.find(Recorder)
        rows = recorder.rows[recorder.since :]
        monitor = best_of(learner)[0] if self.monitor == AUTO else self.monitor
        if monitor not in rows[-1]:
            return
        sign = -1.0 if smaller_is_better(monitor) else 1.0
        best, last = -math.inf, -1
        for index, row in enumerate(rows):
            # The first value is always an improvement. NaN is never one.
            if sign * row.get(monitor, math.nan) > best + self.min_delta:
                best, last = sign * row[monitor], index
        if len(rows) - 1 - last >= self.patience and learner.progress.epoch + 1 < learner.progress.epochs:
            self.reason = f"no better {monitor} in {amount(self.patience, 'epoch')}"
            raise CancelFit


class Interrupt(Callback):
    """Ends the fit cleanly after Ctrl-C, SIGTERM, SIGHUP or SIGUSR1: the batch is finished, and `after_fit` runs.

    A second signal stops the process at once.
    """

    order = Phase.LAST

    def __init__(self) -> None:
        # Whether a signal ended the fit. A signal after the last batch has no effect. Setting `pressed` to True has the
        # effect of a signal.
        self.pressed = self._ended = False
        self._signals = StopSignals()

    def before_fit(self, learner: Learner) -> None:
        """Install the signal handlers, which only works in the main thread."""
        self.pressed = self._ended = False
        self._signals = StopSignals()
        self._signals.hold()
        self._signals.install()

    def after_batch(self, learner: Learner) -> None:
        """End the fit after a signal. All ranks end after the same training batch."""
        stops = self.pressed or self._signals.arrived  # a signal may come before the handlers are installed
        if learner.ranks.size > 1:
            stops = learner.training and learner.ranks.agree("stop", stops)
        if stops:
            self.pressed = self._ended = True
            raise CancelFit

    def after_fit(self, learner: Learner) -> None:
        if learner.ranks.size > 1:
            self.pressed = self._ended  # a signal after the last decision had no effect
        self.pressed |= isinstance(learner.error, KeyboardInterrupt)
        self._signals.restore()


def ending_of(learner: Learner) -> str:
    """Return how a fit ended: finished, interrupted or failed. Call this in or after `after_fit`."""
    if isinstance(learner.error, KeyboardInterrupt):
        return "finished" if learner.progress.is_complete else "interrupted"
    if learner.error is not None:
        return "failed"
    pressed = any(isinstance(callback, Interrupt) and callback.pressed for callback in learner.callbacks)
    return "interrupted" if pressed else "finished"
