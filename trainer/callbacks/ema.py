"""The callback that validates and saves a moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from augment.params import Count, Flag, Number, setting
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.callbacks.optimizer_steps import STATISTICS
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.lazy_learner import Learner
from trainer.models.lora import is_base
from trainer.optim.schedules import position


@configurable
@dataclass(eq=False)
class EMA(Callback):
    """Validates an exponential moving average of weights and batch-norm statistics, and saves it as best.pt.

    For validation, the average is copied into the model's tensors. They keep their addresses, as CUDA graphs require.
    """

    decay: float = setting(Number(default=0.999, within=(0, 0.999999), doc="decay of the average per step"))
    warmup: bool = setting(
        Flag(default=True, doc="after t steps, use the decay (1 + t) / (10 + t) if it is smaller than decay")
    )
    every: int = setting(Count(default=1, within=(1, 10**6), doc="steps between two updates of the average"))
    start: float = setting(Number(default=0.0, within=(0, 1), doc="share of the run before the average starts"))
    order = Phase.FIRST  # other callbacks see the trained values in after_validate and after_fit
    saves = ("_steps", "_average")
    _steps: int = field(default=0, init=False)
    _average: dict[str, Tensor] = field(default_factory=dict, init=False)
    _trained: dict[str, Tensor] = field(default_factory=dict, init=False)  # empty unless the model contains the average

    def before_fit(self, learner: Learner) -> None:
        """Move the average of a resumed run to the device and memory format of the model."""
        if self._average:
            loaded, self._average = self._average, _copies(learner.model)
            _copy(self._average, loaded)

    def after_step(self, learner: Learner) -> None:
        """Update the average, once for all optimizers, after the step of the last one."""
        if learner.optimizer_name != [*learner.optimizers][-1]:
            return
        if position(learner.progress.batches_done, learner.progress.total_batches) < self.start:
            return
        self._steps += 1
        if self._steps % self.every:
            return
        values = _averaged(learner.model)
        decay = min(self.decay, (1 + self._steps) / (10 + self._steps)) if self.warmup else self.decay
        if not self._average:
            self._average = _copies(learner.model)
        with torch.no_grad():
            torch._foreach_lerp_([*self._average.values()], [*values.values()], 1 - decay**self.every)

    def before_validate(self, learner: Learner) -> None:
        """Put the average into the model."""
        if self._average:
            self._trained = _copies(learner.model)
            _copy(_averaged(learner.model), self._average)

    def after_validate(self, learner: Learner) -> None:
        if self._trained:
            _copy(_averaged(learner.model), self._trained)
            self._trained = {}

    after_epoch = after_fit = after_validate  # an exception may have ended the validation

    def evaluated_state(self, learner: Learner) -> dict[str, Tensor] | None:
        """Return the model's state with the average in it."""
        if not self._average:
            return None
        names = {id(value): name for name, value in _averaged(learner.model).items()}
        state = learner.model.state_dict(keep_vars=True)
        return {
            name: self._average[names[id(value)]] if id(value) in names else value.detach()
            for name, value in state.items()
        }


def _averaged(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the parameters and batch-norm statistics to average, each once, without the fixed base of LoRA.

    Other buffers, such as the unit vectors of spectral norms and masks with infinite values, have no useful average.
    """
    statistics = (pair for pair in model.named_buffers() if pair[0].endswith(STATISTICS))
    values = chain(model.named_parameters(), statistics)
    return {name: value for name, value in values if value.is_floating_point() and not is_base(model, name)}


def _copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _averaged(model).items()}


def _copy(to: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into tensors with the same names, in one launch."""
    with torch.no_grad():
        torch._foreach_copy_([*to.values()], [values[name] for name in to])
