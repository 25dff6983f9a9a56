"""EMA: validation scores, and `best.pt` keeps, a moving average of the weights instead of the last ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from augment.params import Count, Flag, Number, setting
from trainer.callback import Callback
from trainer.callbacks import configurable
from trainer.learner import Learner
from trainer.schedule import position


@configurable
@dataclass(eq=False)
class EMA(Callback):
    """Validates and keeps as best an exponential moving average of weights and batch norm statistics.

    The average changes places with the trained values by copying: whatever holds their addresses stays right.
    """

    decay: float = setting(Number(default=0.999, within=(0, 0.999999), doc="share of the average that a step leaves"))
    warmup: bool = setting(Flag(default=True, doc="begin with less decay: (1 + t) / (10 + t) after t steps, up to it"))
    every: int = setting(Count(default=1, within=(1, 10**6), doc="steps between two updates of the average"))
    start: float = setting(Number(default=0.0, within=(0, 1), doc="share of the run before the average begins"))
    order = -20  # what looks at the model after the validation, or after a fit that ends in it, sees the trained one
    _steps: int = field(default=0, init=False)
    _average: dict[str, Tensor] = field(default_factory=dict, init=False)
    _trained: dict[str, Tensor] = field(default_factory=dict, init=False)
    _swapped: bool = field(default=False, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Give the average of a resumed run the places in memory that the model's values have."""
        values = _averaged(learner.model)
        if self._average:
            loaded = self._average
            self._average = {name: torch.empty_like(value).copy_(loaded[name]) for name, value in values.items()}

    @torch.no_grad()
    def after_step(self, learner: Learner) -> None:
        """Move the average a bit towards the present values."""
        if position(learner.step + 1, learner.total_steps) < self.start:
            return
        self._steps += 1
        if self._steps % self.every:
            return
        values = _averaged(learner.model)
        if not self._average:
            self._average = {name: value.clone() for name, value in values.items()}
        torch._foreach_lerp_([*self._average.values()], [*values.values()], 1 - self._decay_now() ** self.every)

    @torch.no_grad()
    def before_validate(self, learner: Learner) -> None:
        """Put the average into the model."""
        if not self._average:
            return
        values = _averaged(learner.model)
        if not self._trained:
            self._trained = {name: torch.empty_like(value) for name, value in values.items()}
        torch._foreach_copy_([*self._trained.values()], [*values.values()])
        torch._foreach_copy_([*values.values()], [*self._average.values()])
        self._swapped = True

    def after_validate(self, learner: Learner) -> None:
        """Put the trained values back."""
        self._restore(learner)

    def after_fit(self, learner: Learner) -> None:
        """Put the trained values back if the fit ended during a validation."""
        self._restore(learner)

    def evaluated_state(self, learner: Learner) -> dict[str, Tensor] | None:
        """Return the model's state with the average in it."""
        if not self._average:
            return None
        places = {id(value): name for name, value in _averaged(learner.model).items()}
        state = learner.model.state_dict(keep_vars=True)
        return {
            name: self._average[places[id(value)]] if id(value) in places else value.detach()
            for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the average and how many steps it has seen."""
        return {"steps": self._steps, "average": dict(self._average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._steps, self._average = state["steps"], dict(state["average"])

    def _decay_now(self) -> float:
        return min(self.decay, (1 + self._steps) / (10 + self._steps)) if self.warmup else self.decay

    @torch.no_grad()
    def _restore(self, learner: Learner) -> None:
        if self._swapped:
            torch._foreach_copy_([*_averaged(learner.model).values()], [*self._trained.values()])
            self._swapped = False


def _averaged(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the parameters and buffers that are averaged, each once; counters stay what they are."""
    values: dict[str, Tensor] = dict(model.named_parameters())
    values |= dict(model.named_buffers())
    return {name: value for name, value in values.items() if value.is_floating_point()}
