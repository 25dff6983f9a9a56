"""Losses for `fit.loss`: functions with the decorator `loss`. The setting may name a sum, such as ce+dice."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from itertools import chain
from typing import Any, ClassVar, TypeVar

from augment.params import Flag, Number, OptionMap, Text, check_known, setting
from augment.support.errors import UserError, plugin_hint, suggest
from augment.support.lazy_torch import F, Tensor, nn, torch
from augment.support.user_code import reject_duplicate

LossFunction = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Settings of the loss. Some settings apply only to some tasks."""

    loss: str | None = setting(
        Text(
            aliases=("criterion", "loss_fn", "loss_function", "regression_loss", "mask_loss"),
            optional=True,
            doc="training loss, or a sum such as cross_entropy+dice. Classification: asymmetric, bce, cross_entropy, "
            "focal, gce, poly, sce. Multi-label classification: asymmetric, bce, focal, poly. Regression: huber, mae, "
            "mse. Segmentation: cross_entropy, dice, focal. Default: cross_entropy, bce in multi-label "
            "classification, huber in regression",
        )
    )
    loss_options: Mapping[str, Any] | None = setting(
        OptionMap(
            optional=True,
            doc="arguments of fit.loss, such as {gamma: 3}. With their defaults: focal (gamma=2), poly (epsilon=2), "
            "asymmetric (gamma_neg=4, gamma_pos=1), bce (target_threshold), huber (delta=1). Multi-label losses have "
            "further arguments: focal (alpha), poly (alpha, gamma=0), asymmetric (clip=0.05). Losses for wrong labels: "
            "gce (q=0.7), sce (alpha=0.1, beta=1)",
        )
    )
    label_smoothing: float = setting(
        Number(default=0, within=(0, 0.999), doc="share of each training target that is spread evenly over all classes")
    )
    standardize: bool = setting(
        Flag(
            default=True,
            doc="for regression: compute the loss on targets standardized by mean and standard deviation of the train "
            "split. Predictions and metrics keep the original units",
        )
    )


L = TypeVar("L", bound=Callable[..., "Tensor"])
V = TypeVar("V")

# All losses by task name and loss name.
LOSSES: dict[tuple[str, str], Callable[..., Tensor]] = {}

_SMOOTHING = "smoothing"  # the argument of losses that smooth targets themselves
_SHORT = {"ce": "cross_entropy", "asl": "asymmetric", "l1": "mae", "l2": "mse"}


def loss(task: str = "classify", *, name: str = "") -> Callable[[L], L]:
    """Declare a function `(outputs, targets, *, options)` as a loss of a task, for `fit.loss`.

    The function returns one value per sample, (N,), on the device. It may return several values per sample, (N, ...),
    which have equal weight. It may also return the mean, (), but then class weights cannot apply. Outputs are float32.
    `fit.loss_options` sets the arguments that have defaults. With label smoothing, the function gets smoothed class
    targets as shares, (N, K). A function with an argument `smoothing` gets the original targets instead.

    Args:
        task: the task. Tasks derived from it also have the loss.
        name: the name in `fit.loss`. Default: the name of the function.
    """

    def decorate(function: L) -> L:
        called = name or function.__name__
        reject_duplicate("loss", called, LOSSES.get((task, called)), function)
        LOSSES[task, called] = function
        return function

    return decorate


def declared(registry: Mapping[tuple[str, str], V], lineage: Sequence[str]) -> dict[str, V]:
    """Return a registry's entries for the named tasks, by entry name. Later tasks take precedence."""
    return {name: found for task in lineage for (of, name), found in registry.items() if of == task}


@dataclass(frozen=True)
class NamedLoss:
    """The sum of the losses that `fit.loss` names, each a mean over the batch."""

    usual: ClassVar[str] = ""  # name of the loss that applies if `terms` is empty

    smoothing: float = 0.0  # share of each class target that is spread over all classes, in [0, 1)
    weights: Tensor | None = field(default=None, compare=False)  # (K,) of classes or labels, on the device. None: 1
    terms: tuple[LossFunction, ...] = ()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _total(term(outputs, targets) for term in self.terms).mean()


@dataclass(frozen=True)
class ClassLoss(NamedLoss):
    """A classification loss, by default cross entropy. Targets are (N,) class indices or (N, classes) shares.

    The share `smoothing` of a target is spread evenly over all classes (Szegedy et al. 2016, arXiv:1512.00567). An
    image has the weight of its class before smoothing. A mixed image has the mean weight of its shares. The loss is the
    weighted mean over the images.
    """

    usual: ClassVar[str] = "cross_entropy"

    def weight_of(self, targets: Tensor) -> Tensor | None:
        """Return the sum of the images' weights, (), or None without weights. See the function `weight_of`."""
        return None if self.weights is None else image_weights(targets, self.weights).sum().float()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        smoothing, weights = self.smoothing, self.weights
        if not self.terms:
            if weights is None or (targets.ndim == 1 and not smoothing):
                return F.cross_entropy(outputs, targets, weights, label_smoothing=smoothing)
            values = F.cross_entropy(outputs, targets, label_smoothing=smoothing, reduction="none")
        else:
            given = targets
            if smoothing:
                shares = targets if targets.ndim == 2 else F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
                given = shares * (1 - smoothing) + smoothing / outputs.shape[1]
            values = _total(term(outputs, targets if smooths(term) else given) for term in self.terms)
        if weights is None:
            return values.mean()
        each = image_weights(targets, weights)
        return (values * each).sum() / each.sum()


@dataclass(frozen=True)
class LabelLoss(NamedLoss):
    """A multi-label loss, by default binary cross entropy. It is a mean over the batch and the labels.

    Targets are (N, labels) in [0, 1]. Smoothing moves them towards 0.5. A present label has its own weight, an absent
    label has weight 1, and a mixed label has a weight in between.
    """

    usual: ClassVar[str] = "bce"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = self.weights
        given = targets * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else targets
        each = None if weights is None else 1 + (weights - 1) * targets
        if not self.terms:
            return F.binary_cross_entropy_with_logits(outputs, given, each)
        values = (term(outputs, targets if smooths(term) else given) for term in self.terms)
        return _total(value if each is None else value * each for value in values).mean()


def loss_names(given: str, known: Collection[str], task: str) -> list[str]:
    """Split a sum such as `ce+dice` into the full names of its losses.

    Raises:
        UserError: the task has no such loss.
    """
    names = [_SHORT.get(name, name) for name in given.split("+")]
    for name in names:
        if name not in known:
            allowed = suggest(name, [*known, "null"])
            raise UserError(f"fit.loss={given}: the task {task} has no loss '{name}'.{allowed} {plugin_hint('loss')}")
    return names


def with_options(losses: Sequence[LossFunction], fit: LossSettings) -> tuple[LossFunction, ...]:
    """Bind `fit.loss_options` and the label smoothing to the losses that take them.

    Raises:
        UserError: no loss has such an option.
    """
    options = fit.loss_options or {}
    taken = [_options_of(loss) for loss in losses]
    check_known(options, {key: None for key in chain(*taken) if key != _SMOOTHING}, "fit.loss_options")
    values = {**options, _SMOOTHING: fit.label_smoothing}
    terms = []
    for loss, keys in zip(losses, taken, strict=True):
        terms.append(partial(loss, **{key: values[key] for key in keys if key in values}))
    return tuple(terms)


def _options_of(loss: LossFunction) -> list[str]:
    parameters = signature(loss).parameters.items()
    return [key for key, parameter in parameters if parameter.default is not Parameter.empty]


def weight_of(loss: LossFunction, targets: Any) -> Tensor | int:
    """Return the denominator of a loss's mean over a batch, which is the batch's weight in a mean over several batches.

    Metrics, gradient accumulation and ranks use this weight. A loss may declare it with a method `weight_of(targets)`,
    which returns a positive () tensor on the device of the targets. The default is the number of images, or the sum of
    the weights of PyTorch's cross entropy.
    """
    # Subclasses may average differently.
    declared = partial(_torch_weight, loss) if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss) else lambda _: None
    weight: Tensor | None = getattr(loss, "weight_of", declared)(targets)
    return len(targets) if weight is None else weight


def _torch_weight(loss: Any, targets: Any) -> Tensor | None:
    """Return the denominator of a PyTorch loss with class weights or an ignored class. None: the number of images."""
    is_weighted = loss.reduction == "mean" and (loss.weight is not None or loss.ignore_index != -100)
    if not is_weighted or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return None
    counted = targets != loss.ignore_index
    each: Tensor = counted if loss.weight is None else counted * loss.weight[targets.where(counted, 0)]
    return each.sum().float()


def smooths(term: LossFunction) -> bool:
    """Return whether a term of a named loss smooths targets itself."""
    return _SMOOTHING in getattr(term, "keywords", {})


def _total(values: Iterable[Tensor]) -> Tensor:
    """Return the sum of losses per sample, (N,), or of their means, (). Each loss has the shape (N, ...) or ()."""
    means = [value.flatten(1).mean(dim=1) if value.ndim > 1 else value for value in values]
    return sum(means[1:], means[0])


def image_weights(targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weight of each image, (N,), for class indices or shares."""
    return targets @ weights if targets.ndim == 2 else weights[targets]
