"""The callback that freezes the first layers of a pretrained network while its new head learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from augment.params import Choice, Count, Text, setting
from augment.support.errors import UserError
from augment.support.lazy_torch import nn
from trainer.loop.callback import Callback, configurable
from trainer.loop.lazy_learner import Learner
from trainer.optim.layers import layer_of, matches


@configurable
@dataclass(eq=False)
class Freeze(Callback):
    """Freezes layers in the first epochs, by default all except the head.

    Frozen parameters and the running statistics of frozen batch norms do not change.
    """

    epochs: int = setting(Count(default=1, within=(1, 10**6), doc="epochs in which all chosen layers are frozen"))
    layers: str | None = setting(
        Text(
            optional=True,
            doc="layers to freeze: a number of layers, counted from the stem, or a pattern of parameter names such as "
            "layer1.*. Default: all layers except the head",
        )
    )
    unfreeze: str = setting(
        Choice(
            default="all",
            options=("all", "gradually"),
            doc="unfreeze all layers at once, or one layer per epoch starting from the head",
        )
    )
    _trainable: dict[str, nn.Parameter] = field(default_factory=dict, init=False)

    def check(self, model: nn.Module) -> None:
        self._layers(model)

    def before_fit(self, learner: Learner) -> None:
        self._trainable = {name: p for name, p in learner.model.named_parameters() if p.requires_grad}

    def before_epoch(self, learner: Learner) -> None:
        self._freeze(learner, self.frozen(learner.model, learner.progress.epoch))

    def before_train(self, learner: Learner) -> None:
        """Put frozen norms into evaluation mode. Norms without parameters are frozen with the layer before them."""
        is_frozen = False
        for module in learner.model.modules():
            if own := list(module.parameters(recurse=False)):
                is_frozen = not any(parameter.requires_grad for parameter in own)
            if is_frozen and hasattr(module, "running_mean"):
                module.eval()

    def after_fit(self, learner: Learner) -> None:
        self._freeze(learner, set())

    def frozen(self, model: nn.Module, epoch: int) -> set[str]:
        """Return the names of the parameters that are frozen in an epoch."""
        layers = self._layers(model)
        numbers = sorted(set(layers.values()))
        unfrozen = epoch - self.epochs + 1  # number of layers that are unfrozen so far
        if unfrozen > 0:
            numbers = numbers[:-unfrozen] if self.unfreeze == "gradually" else []
        return {name for name, number in layers.items() if number in numbers}

    def _freeze(self, learner: Learner, names: set[str]) -> None:
        changed = [param for name, param in self._trainable.items() if param.requires_grad == (name in names)]
        for param in changed:
            param.requires_grad_(not param.requires_grad)
        if changed:
            learner.recapture()  # drops the gradients of frozen parameters, so that no optimizer changes them

    def _layers(self, model: nn.Module) -> dict[str, int]:
        """Return the names of the parameters that are frozen in some epoch, with their layer numbers."""
        layers = layer_of(model, coarse=True)
        head = max(layers.values(), default=0)
        known = {name: layers.get(name, head) for name, _ in model.named_parameters()}
        if self.layers is None or self.layers.isdecimal():
            frozen = {name: number for name, number in known.items() if number < int(self.layers or head)}
        else:
            frozen = {name: number for name, number in known.items() if matches(name, [self.layers])}
        if not frozen or len(frozen) == len(known):
            children = dict.fromkeys(f"{name.split('.')[0]}.*" for name in known if "." in name)
            what, given = "all parameters" if frozen else "no parameter", self.layers or "null"
            raise UserError(
                f"callbacks.freeze.layers: {given} freezes {what}. Set a number of layers from 1 to {head}, "
                f"or a pattern of names such as {', '.join([*children][:5])}."
            )
        return frozen
