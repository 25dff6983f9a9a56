"""Losses by name, for `fit.loss`. A loss is a function with one decorator; names may be added up, as in ce+dice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

from augment.params import Flag, Number, OptionMap, Text, check_known, setting
from augment.support.errors import UserError, first_line, suggest
from augment.support.lazy import F, Tensor

LossFunction = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How the loss is computed; some settings apply to some tasks only."""

    loss: str | None = setting(
        Text(
            aliases=("criterion", "loss_fn", "loss_function", "regression_loss", "mask_loss"),
            optional=True,
            doc="the loss to train with, or a sum, as cross_entropy+dice; classes: asymmetric, bce, cross_entropy, "
            "focal, poly; labels: asymmetric, bce, focal, poly; numbers: huber, mae, mse; masks: "
            "cross_entropy, dice, focal; null: cross_entropy, of labels bce, of numbers huber",
        )
    )
    loss_options: Mapping[str, Any] | None = setting(
        OptionMap(
            optional=True,
            doc="arguments of fit.loss, such as {gamma: 3}; focal: gamma=2; poly: epsilon=2; asymmetric: gamma_neg=4, "
            "gamma_pos=1; bce: target_threshold; huber: delta=1; labels: also alpha of focal, alpha and gamma of poly, "
            "clip=0.05 of asymmetric",
        )
    )
    label_smoothing: float = setting(
        Number(default=0, within=(0, 0.999), doc="share of each training target that is spread over all classes")
    )
    standardize: bool = setting(
        Flag(
            default=True,
            doc="regression: learn targets standardized by mean and deviation of the train split, which the loss is "
            "computed on; everything else is in original units",
        )
    )


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy, a mean over the batch.

    Attributes:
        smoothing: share of every target that is spread evenly over all classes (Szegedy et al. 2016,
            arXiv:1512.00567), in [0, 1).
        weights: (classes,) weights of the classes, on the device; None: 1. For class indices the mean is PyTorch's:
            each image has the weight of its class, and the sum is divided by the sum of these weights. For shares
            PyTorch divides by the number of images; here the mean is as for indices, as an index is the share 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)

    def weight_of(self, targets: Tensor) -> Tensor | None:
        """Return the () sum of weights that the mean over a batch divides by; None: the number of its images."""
        if self.weights is None:
            return None
        return (targets @ self.weights if targets.ndim == 2 else self.weights[targets]).sum().float()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss.

        Args:
            outputs: (N, classes).
            targets: (N,) class indices, or (N, classes) shares.
        """
        if self.weights is None or (targets.ndim == 1 and not self.smoothing):
            return F.cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing)
        if targets.ndim == 1:
            # With weights and smoothing PyTorch selects images by a mask, for which it waits for the GPU.
            targets = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        total = F.cross_entropy(outputs, targets, self.weights, label_smoothing=self.smoothing, reduction="sum")
        return total / (targets @ self.weights).sum()


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross entropy of each label on its own, present or absent, a mean over the batch and the labels.

    Attributes:
        smoothing: share of every target that is spread evenly over present and absent, in [0, 1).
        weights: (labels,) weights of present labels, on the device; an absent label has weight 1. None: 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss.

        Args:
            outputs: (N, labels) logits.
            targets: (N, labels) in [0, 1].
        """
        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=self.weights)


if TYPE_CHECKING:
    from trainer.tasks.task import Task

L = TypeVar("L", bound=Callable[..., "Tensor"])

# By the name of the task and its own.
LOSSES: dict[tuple[str, str], Callable[..., Tensor]] = {}

_SMOOTHING = "smoothing"  # the argument by which a loss smooths targets itself
_SHORT = {"ce": "cross_entropy", "asl": "asymmetric", "l1": "mae", "l2": "mse"}


def loss(task: str = "classify", *, name: str = "") -> Callable[[L], L]:
    """Declare a function `(outputs, targets, *, options)` as a loss of a task, under its own name in `fit.loss`.

    It returns a value for each sample, (N,), or several, (N, ...), which count alike, on the device; or their mean, (),
    to which weights of classes cannot apply. Outputs are float32. Its arguments with defaults are `fit.loss_options`.
    Targets of classes are smoothed before, as shares, (N, K), unless it has an argument `smoothing`.

    Args:
        task: the task, or one that it is derived from.
        name: another name.
    """

    def decorate(function: L) -> L:
        LOSSES[task, name or function.__name__] = function
        return function

    return decorate


def losses_of(task: Task[Any]) -> dict[str, Callable[..., Tensor]]:
    """Return the losses of a task, and of those that it is derived from, by name."""
    names = [vars(cls).get("name") for cls in type(task).__mro__[::-1]]
    return {name: function for known in names for (of, name), function in LOSSES.items() if of == known}


@dataclass(frozen=True)
class NamedLoss:
    """The sum of losses of targets that have neither smoothing nor weights, each a mean over the batch."""

    smoothing: float = 0.0
    weights: Tensor | None = field(default=None, compare=False)
    terms: tuple[LossFunction, ...] = ()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of outputs, (N, ...), as the losses take them with the targets."""
        return _total(term(outputs, targets) for term in self.terms).mean()


@dataclass(frozen=True)
class ClassLoss(CrossEntropy):
    """The sum of losses of classes, smoothed and weighted as cross entropy is.

    Each image has the weight of its class; of shares, the mean of these weights.
    """

    terms: tuple[LossFunction, ...] = ()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of outputs, (N, classes), for (N,) class indices, or (N, classes) shares."""
        given, weights = targets, self.weights
        if self.smoothing:
            shares = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype) if targets.ndim == 1 else targets
            given = shares * (1 - self.smoothing) + self.smoothing / outputs.shape[1]
        values = _total(term(outputs, targets if smooths(term) else given) for term in self.terms)
        if weights is None:
            return values.mean()
        each = targets @ weights if targets.ndim == 2 else weights[targets]
        return (values * each).sum() / each.sum()


@dataclass(frozen=True)
class LabelLoss(BinaryCrossEntropy):
    """The sum of losses of labels, smoothed as cross entropy is; what is lost by present labels is weighted."""

    terms: tuple[LossFunction, ...] = ()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of outputs, (N, labels) logits, for targets, (N, labels) in [0, 1]."""
        given = targets * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else targets
        values = (term(outputs, targets if smooths(term) else given) for term in self.terms)
        if (weights := self.weights) is not None:
            return _total(value * (1 + (weights - 1) * targets) for value in values).mean()
        return _total(values).mean()


Named = NamedLoss | ClassLoss | LabelLoss


def named_loss(task: Task[Any], fit: LossSettings, weights: Tensor | None = None) -> Named:
    """Return the loss that `fit.loss` names, with its options; the last argument as in `Task.make_losses`.

    Raises:
        UserError: there is no such loss or option.
    """
    known, given = losses_of(task), fit.loss or task.default_loss
    names = [_SHORT.get(name, name) for name in given.split("+")]
    for name in names:
        if name not in known:
            end = f"{suggest(name, known)[:-1]} or null." if known else " Allowed: null."
            raise UserError(f"fit.loss={given}: the task {task.name} has no loss '{name}'.{end}")
    takes = {
        name: [key for key, param in signature(known[name]).parameters.items() if param.default is not Parameter.empty]
        for name in names
    }
    options = fit.loss_options or {}
    allowed = {key: None for keys in takes.values() for key in keys if key != _SMOOTHING}
    check_known(options, allowed, "fit.loss_options")
    values = {**options, _SMOOTHING: fit.label_smoothing}
    terms = tuple(partial(known[name], **{key: values[key] for key in takes[name] if key in values}) for name in names)
    made: Named = task.loss_type(fit.label_smoothing, weights, terms)
    return made


def smooths(term: LossFunction) -> bool:
    """Return whether a term of a named loss smooths targets itself."""
    return _SMOOTHING in getattr(term, "keywords", {})


def check_loss(task: Task[Any], fit: LossSettings, classes: int, *, mixing: str = "", weighted: bool = False) -> None:
    """Check `fit.loss` by trying it with two samples.

    Raises:
        UserError: the loss is unknown, or cannot be computed with these settings.
    """
    if fit.loss is None:
        if fit.loss_options:
            names = ", ".join(losses_of(task))
            raise UserError(f"fit.loss_options={fit.loss_options}: needs fit.loss. Allowed: null, or with {names}.")
        return
    named = named_loss(task, fit)
    began = getattr(fit, "resume", None) is not None  # in an older version, which ignored it
    if fit.label_smoothing and task.loss_type is NamedLoss and not (began or any(map(smooths, named.terms))):
        raise UserError(f"fit.label_smoothing={fit.label_smoothing:g}: not with fit.loss={fit.loss}. Allowed: 0.")
    for term in named.terms:
        smoothed = named.smoothing and not smooths(term)
        soft = mixing or (f"fit.label_smoothing={fit.label_smoothing:g}" if smoothed else "")
        outputs, targets = task.example(classes, shares=bool(soft))
        try:
            shape = tuple(term(outputs, targets).shape)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
            why = f"cannot take mixed targets, of {soft}" if soft else "fails"
            raise UserError(f"fit.loss={fit.loss}: {why} ({first_line(error)}).") from error
        if shape[:1] not in ((), (len(outputs),)):
            raise UserError(
                f"fit.loss={fit.loss}: returns shape {shape} for {len(outputs)} samples. Allowed: a value for each of "
                f"them, ({len(outputs)},), or their mean, ()."
            )
        each, whole = "label" if task.loss_type is LabelLoss else "sample", "sample" if shape else "batch"
        if weighted and len(shape) < 1 + (each == "label"):
            raise UserError(
                f"data.balance=weights: fit.loss={fit.loss} returns one value for a {whole}, in which {task.units} "
                f"have no weights. Allowed: a loss that returns a value for each {each}; or data.balance=oversample."
            )


def _total(values: Iterable[Tensor]) -> Tensor:
    """Return the sum of values, (N, ...) or () each, for each sample, (N,) or ()."""
    means = [value.flatten(1).mean(dim=1) if value.ndim > 1 else value for value in values]
    return sum(means[1:], means[0])
