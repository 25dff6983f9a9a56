"""Regression: some numbers for each image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.data.targets.kind import Target
from augment.data.targets.numbers import NUMBERS
from trainer.tasks.display import (
    POSITIVE,
    TRAIN_LOSS,
    VAL_LOSS,
    Column,
    FigureImage,
    Finding,
    Scatter,
    Section,
    Table,
    WrongSample,
)  # fmt: skip
from trainer.tasks.losses import LossFunction, regression_loss
from trainer.tasks.metrics import OutputMeter, OutputSamples, mean_of_known
from trainer.tasks.registry import register
from trainer.tasks.settings import LossSettings
from trainer.tasks.standardize import Standard
from trainer.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class NumberMeter(OutputMeter):
    """Mean loss and errors of a pass over numbers, and the coefficient of determination at its end."""

    sums = 2  # of the errors and their squares, each a mean over a sample's numbers, times the samples

    def _measure(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        errors = outputs.float() - targets
        for total, values in zip(self._more, (errors.abs(), errors.square()), strict=True):
            total.add_(values.mean(), alpha=len(targets))
        return (targets,)

    def _named(self, means: list[float]) -> dict[str, float]:
        return {"mae": means[0], "rmse": math.sqrt(means[1])}

    def scores(self) -> dict[str, float]:
        """Return the means, and those over the numbers: of their RMSE, and of R2 where they differ between images."""
        kept = self.kept()
        scores = number_scores(kept) if len(kept.index) else []
        mean_rmse = {"mean_rmse": mean_of_known([rmse for _, rmse, _ in scores])} if self._count > 1 else {}
        return self.compute() | mean_rmse | {"r2": mean_of_known([r2 for *_, r2 in scores])}


@register
class Regress(Task[OutputSamples]):
    """Some numbers for each image."""

    name, kind = "regress", NUMBERS
    unit, units = "number", "numbers"
    monitor, score, score_title, share = "val_loss", "mae", "Mean absolute error", False
    metrics = (
        TRAIN_LOSS,
        Column("train_mae", "train mae", "{:.4g}", smaller=True, within=POSITIVE),
        VAL_LOSS,
        Column("val_mae", "val mae", "{:.4g}", smaller=True, within=POSITIVE),
        Column("val_rmse", "val rmse of all errors", "", "{:.4g}", smaller=True, within=POSITIVE),
        Column("val_mean_rmse", "val rmse, mean of numbers", "", "{:.4g}", smaller=True, within=POSITIVE, above=1),
        Column("val_r2", "val R²", "", "{:.3f}", within=(-math.inf, 1.0)),
    )
    meter, samples = NumberMeter, OutputSamples
    loss_settings = ("regression_loss", "standardize")
    # The best epoch is chosen by this loss. Runs that do not name it had the first default.
    resume_settings = ("regression_loss",)
    ranked = False
    figure_file = "scatter.png"
    mistakes_title, mistakes_text = "Largest errors", "with the largest errors in the best epoch"

    def prepare(self, network: nn.Module, fit: LossSettings, targets: Sequence[Target], names: Sequence[str]) -> str:
        """Make the network predict numbers in their own units, if they are learned in standard deviations."""
        if not fit.standardize:
            return ""
        standard = Standard.of(targets)
        standard.put_into(network)
        return f"targets are standardized by mean and standard deviation in train: {standard.describe(names)}"

    def restore(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Make the network predict numbers in their own units, if the one of the state did."""
        if standard := Standard.in_state(state):
            standard.put_into(network)

    def make_losses(
        self, fit: LossSettings, network: nn.Module, device: torch.device, weights: Tensor | None = None
    ) -> tuple[LossFunction, LossFunction]:
        """Return the configured loss twice, in standard deviations if the network standardizes."""
        loss, standard = regression_loss(fit.regression_loss), Standard.in_state(network.state_dict())
        if standard:
            loss = standard.loss(loss, device)
        return loss, loss

    def per_class(self, samples: OutputSamples, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return errors and R2 of each number."""
        scores = (dict(zip(("mae", "rmse", "r2"), values, strict=True)) for values in number_scores(samples))
        return dict(zip(names, scores, strict=True))

    def figure(self, samples: OutputSamples, names: Sequence[str]) -> Scatter:
        """Return predictions over targets."""
        return Scatter(samples.target.numpy(), samples.output.numpy(), names)

    def section(self, samples: OutputSamples, names: Sequence[str]) -> Section:
        """Return errors and R2 of each number, and predictions over targets."""
        rows = [
            (name, f"{mae:.4g}", f"{rmse:.4g}", "" if math.isnan(r2) else f"{r2:.3f}")
            for name, (mae, rmse, r2) in zip(names, number_scores(samples), strict=True)
        ]
        head = ("number", "mean absolute error", "root mean squared error", "R²")
        scatter = FigureImage("Predictions over true values, in the best epoch", "Scatter of predictions over targets")
        return Section((Table("", head, rows),), (scatter,))

    def findings(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[Finding]:
        """Yield the numbers that are predicted no better than by their mean."""
        for name, (_, _, r2) in zip(names, number_scores(samples), strict=True):
            if r2 <= 0:
                text = f"{name} is predicted no better than by its mean for every image (R² {r2:.2f})."
                yield Finding(text, warning=True)

    def mistakes(self, samples: OutputSamples, names: Sequence[str]) -> Iterator[WrongSample]:
        """Yield the images by their largest error, relative to the standard deviation of each number."""
        target, output = samples.target.numpy(), samples.output.numpy()
        error = (np.abs(output - target) / np.maximum(target.std(axis=0), 1e-12)).max(axis=1)
        for i in np.argsort(-error, kind="stable").tolist():
            yield WrongSample(i, self.caption(target[i], names), self.caption(output[i], names))


def number_scores(samples: OutputSamples) -> list[tuple[float, ...]]:
    """Return mean absolute error, root mean squared error and R2 of each number.

    R2, the coefficient of determination, is 1 - the squared error over that of always predicting the mean: 1 is
    perfect, 0 no better than the mean; NaN where the number is the same in all images.
    """
    import torch

    errors = (samples.output - samples.target).double()
    square, variance = errors.square().mean(0), samples.target.double().var(0, correction=0)
    r2 = torch.where(variance > 0, 1 - square / variance, math.nan)
    return [tuple(scores) for scores in torch.stack([errors.abs().mean(0), square.sqrt(), r2], dim=1).tolist()]
