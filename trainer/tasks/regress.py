"""Regression: one or several numbers for each image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from augment.data.dataset import Split, Target
from augment.data.targets.regression import NUMBERS
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.tasks.display import Block, FigureImage, Finding, Scatter, WrongSample
from trainer.tasks.loss import LossFunction, LossSettings
from trainer.tasks.metric import POSITIVE, OutputSamples, mean_of_known, metric
from trainer.tasks.registry import register
from trainer.tasks.task import Task

# Names of the network's buffers.
MEAN, STD = "target_mean", "target_std"


@metric("regress", smaller=True, within=POSITIVE, line="{:.4g}")
def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs()


@metric("regress", title="rmse of all errors", smaller=True, within=POSITIVE, line="", finish=math.sqrt)
def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared errors. The metric is the square root of their mean."""
    return (outputs - targets).square()


@metric("regress", title="rmse, mean of numbers", smaller=True, within=POSITIVE, whole=True, above=1, line="")
def mean_rmse(outputs: Tensor, targets: Tensor) -> float:
    return mean_of_known(rmse for _, rmse, _ in number_scores(outputs, targets))


@metric("regress", title="R²", within=(-math.inf, 1), whole=True, line="")
def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean R2 of the numbers that vary between images."""
    return mean_of_known(r2 for *_, r2 in number_scores(outputs, targets))


def number_scores(outputs: Tensor, targets: Tensor) -> list[tuple[float, ...]]:
    """Return mean absolute error, root mean squared error and R2 of each number.

    R2, the coefficient of determination, is 1 - mean squared error / variance. 1 is perfect, and 0 is as good as always
    predicting the mean. R2 is NaN if the number is the same in all images.
    """
    errors = (outputs - targets).double()
    square, variance = errors.square().mean(0), targets.double().var(0, correction=0)
    r2 = (1 - square / variance).masked_fill(variance == 0, math.nan)
    return list(zip(errors.abs().mean(0).tolist(), square.sqrt().tolist(), r2.tolist(), strict=True))


def mean_and_std(targets: Sequence[Target]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of a split's targets, (K,) float32. A constant number gets deviation 1."""
    values = np.array(targets, np.float64)
    mean, std = values.mean(axis=0), values.std(axis=0)
    # Rounding may make the deviation of a constant number differ from 0.
    std[std <= 1e-12 * np.abs(mean)] = 1.0
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)


def standardize(network: nn.Module, mean: Tensor, std: Tensor) -> None:
    """Make a network predict standardized numbers, and convert its outputs to the units of the targets."""
    network.register_buffer(MEAN, mean.clone())
    network.register_buffer(STD, std.clone())
    network.register_forward_hook(_in_own_units)


def _in_own_units(network: nn.Module, _: Any, output: Tensor) -> Tensor:
    # In float32, because bfloat16 rounds the years 1990 and 1992 to the same number.
    mean, std = network.get_buffer(MEAN), network.get_buffer(STD)
    return output.float() * std + mean


@register
class Regress(Task[OutputSamples]):
    """One or several numbers for each image."""

    name, kind = "regress", NUMBERS
    unit, units = "number", "numbers"
    monitor, score, score_title, unit_score = "val_loss", "mae", "Mean absolute error", "r2"
    default_loss = "huber"
    loss_settings = ("loss", "loss_options", "standardize")
    by_unit, ranked = True, False
    figure_file = "scatter.png"
    mistakes_title, mistakes_text = "Largest errors", "with the largest errors in the best epoch"

    def prepare(self, network: nn.Module, fit: LossSettings, train: Split, names: Sequence[str]) -> str:
        """If `fit.standardize` is true, let the network predict standardized numbers.

        Its outputs are converted to the units of the targets.
        """
        if not fit.standardize:
            return ""
        mean, std = mean_and_std(train.targets)
        standardize(network, mean, std)
        pairs = zip(names, mean.tolist(), std.tolist(), strict=True)
        scales = ", ".join(f"{name} {mean:.4g} +- {std:.4g}" for name, mean, std in pairs)
        return f"targets are standardized by mean and standard deviation of the train split: {scales}"

    def restore(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        if MEAN in state:
            standardize(network, state[MEAN], state[STD])

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return one loss for training and validation, of standardized errors if `prepare` standardized targets."""
        loss: LossFunction = self.named_loss(fit)
        if (std := network.state_dict().get(STD)) is None:
            return loss, loss
        std = std.to(device)

        def standardized(outputs: Tensor, targets: Tensor) -> Tensor:
            # Subtract before dividing, because dividing large numbers first would lose digits.
            errors = (outputs - targets) / std
            return loss(errors, torch.zeros_like(errors))

        return standardized, standardized

    def per_class(self, samples: OutputSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        scores = zip(names, number_scores(samples.output, samples.target), strict=True)
        return {name: {"mae": mae, "rmse": rmse, "r2": r2} for name, (mae, rmse, r2) in scores}

    def figure(self, samples: OutputSamples, names: Sequence[str]) -> Scatter:
        return Scatter(samples.target.numpy(), samples.output.numpy(), names)

    def section(self, samples: OutputSamples, names: Sequence[str]) -> tuple[Block, ...]:
        scatter = FigureImage(
            "Predictions against true values, in the best epoch", "Scatter plot of predictions against targets"
        )
        return self.table(self.per_class(samples, names)), scatter

    def findings(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[Finding]:
        for name, found in self.per_class(samples, names).items():
            if found["r2"] <= 0:
                text = f"The model predicts {name} no better than its mean (R² {found['r2']:.2f})."
                yield Finding(text, warning=True)

    def mistakes(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images by their largest error in standard deviations of the number, the worst first."""
        target, output = samples.target, samples.output
        errors = ((output - target).abs() / target.std(dim=0, correction=0).clamp(min=1e-12)).amax(dim=1)
        for i in errors.argsort(descending=True, stable=True).tolist():
            yield WrongSample(i, self.caption(target[i], names), self.caption(output[i], names))
