"""Raise the learning rate from step to step, and suggest one.

While the rate rises exponentially from batch to batch, the loss is flat, falls, and finally explodes (Smith 2017,
arXiv:1506.01186). A third of the rate at which the smoothed loss is lowest is suggested: `fit.lr` is the highest rate
of a schedule, held only briefly, and may be close to where the loss turns (Smith 2018, arXiv:1803.09820). The first
tenth of the losses, in which the average has not settled, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from augment.cli.compose import compose
from augment.cli.parser import Parser, png_file, positive_number, readable_errors, whole_number, writing
from augment.support.console import text_console
from augment.support.errors import UserError
from augment.support.files import write_json
from augment.support.formatting import amount
from augment.support.lazy_torch import torch
from augment.support.secrets import as_written
from trainer.callbacks.optimizer_steps import GradClip
from trainer.callbacks.progress import PassBar
from trainer.loop.callback import Callback, CancelFit, CancelValidate, Phase
from trainer.optim.settings import exp
from trainer.run.config.schema import Config, new_folder, parse_config
from trainer.run.failures import explained
from trainer.run.jobs import require_ranks
from trainer.tasks.loss import weight_of

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

_START, _END, _STEPS = 1e-6, 10.0, 100

_EVERY = 10  # steps between two checks of the losses, which wait for the device
DIVERGED = 4.0  # ratio to the smallest smoothed loss
_WINDOW = 0.05  # share of the steps over which losses are averaged
_SETTLE = 0.1  # share of the steps that is ignored at the start
_FALL = 0.02  # share by which the loss must fall for a suggestion
_BELOW = 3.0  # ratio of the rate at the lowest loss to the suggested peak

_EXAMPLES = """\
  python -m trainer find_lr +aug=imagenette
  python -m trainer find_lr +aug=imagenette data=folder data.root=DIR model=timm model.name=resnet18
  python -m trainer find_lr fit.optimizer=adamw --from 1e-7 --to 1 --steps 200 --out lr.png

Overrides are those of python -m trainer. The suggestion holds for the model, data, optimizer, aug.size and batch size
given here; of callbacks, only grad_clip applies, and stages are ignored. No weights are kept."""


@dataclass(frozen=True)
class Curve:
    """The result of a range test, up to the step in which the loss exploded."""

    lrs: tuple[float, ...]  # learning rate of each step
    losses: tuple[float, ...]  # training loss of each step's batch, before the step was made
    smoothed: tuple[float, ...]  # running average of the losses
    suggestion: float | None  # the suggested learning rate; None if the loss does not fall


def read_curve(lrs: Sequence[float], losses: Sequence[float], steps: int) -> Curve:
    """Read the losses of a test at rising learning rates, up to where they explode."""
    smoothed = smooth(losses, steps)
    pairs = enumerate(zip(smoothed, accumulate(smoothed, min), strict=True))
    exploded = (step for step, (loss, least) in pairs if not math.isfinite(loss) or loss > DIVERGED * least)
    end = next(exploded, len(smoothed))
    suggestion = suggest_rate(lrs[:end], smoothed[:end], skip=round(_SETTLE * steps))
    return Curve(tuple(lrs[:end]), tuple(losses[:end]), tuple(smoothed[:end]), suggestion)


def smooth(losses: Sequence[float], steps: int) -> list[float]:
    """Return the exponential moving average of losses, corrected for its initial bias towards 0."""
    keep = 1 - 1 / max(1.0, _WINDOW * steps)
    averages = accumulate(losses, lambda average, loss: keep * average + (1 - keep) * loss, initial=0.0)
    return [average / (1 - keep**count) for count, average in enumerate(averages) if count]


def suggest_rate(lrs: Sequence[float], smoothed: Sequence[float], *, skip: int = 0) -> float | None:
    """Return the rate that a curve suggests, without its first steps; None if the loss does not fall."""
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    highest = max(smoothed[skip : lowest + 1], default=0.0)
    falls = lowest >= skip + 2 and highest - smoothed[lowest] >= _FALL * abs(highest)
    return lrs[lowest] / _BELOW if falls else None


class LRFinder(Callback):
    """Raise the learning rate from step to step and record the losses; end the fit when they explode.

    Validation is skipped. The losses are checked, which waits for the device, only every few steps.
    """

    order = Phase.MEASURE  # as the scheduler, which it replaces

    def __init__(self, start: float = _START, end: float = _END, steps: int = _STEPS) -> None:
        self._rise, self._steps = exp(start, end), steps

    def before_fit(self, learner: Learner) -> None:
        """Make room for the losses."""
        self._losses, self._done = torch.zeros(self._steps, device=learner.device), 0
        self._weights = torch.zeros_like(self._losses)

    def before_batch(self, learner: Learner) -> None:
        """Set the learning rate, the same for all batches of a step."""
        from trainer.optim.optimizers import set_value

        for group in learner.optimizer.param_groups:
            set_value(group, "lr", self._rate(self._done))

    def after_batch(self, learner: Learner) -> None:
        """Keep the loss, the mean over a step; check every few steps whether to stop."""
        targets = learner.task.targets_of(learner.batch)
        weight = learner.progress.share * (weight_of(learner.loss_function, targets) / len(targets))
        self._losses[self._done] += learner.loss.detach() * weight
        self._weights[self._done] += weight
        if learner.progress.position.batch < sum(learner.progress.group):
            return
        self._done += 1
        if self._done == self._steps or (self._done % _EVERY == 0 and len(self._read().losses) < self._done):
            raise CancelFit

    def before_validate(self, learner: Learner) -> None:
        """Skip validation."""
        raise CancelValidate

    def curve(self) -> Curve:
        """Return the losses of the test; waits for the device."""
        if len((curve := self._read()).losses) < 2:
            first = self._losses[0].item()
            raise UserError(f"the training loss is {first} in the first steps. Allowed: a smaller --from.")
        return curve

    def _read(self) -> Curve:
        losses = self._losses[: self._done] / self._weights[: self._done]
        return read_curve([*map(self._rate, range(self._done))], losses.tolist(), self._steps)

    def _rate(self, step: int) -> float:
        return self._rise(step / (self._steps - 1))


def find_lr(config: Config, start: float, end: float, steps: int) -> Curve:
    """Run a learning rate range test: model, data and optimizer as configured, nothing is written."""
    if start >= end:
        raise UserError(f"--from {start:g} --to {end:g}: not allowed. Allowed: numbers above 0, the second the larger.")
    from trainer.run.build import make_learner, make_loaders, session

    # Stages are ignored, because the best rate depends on the image size.
    config = replace(config, fit=replace(config.fit, steps=steps, stages=()))
    finder, progress = LRFinder(start, end, steps), PassBar("learning rates", steps * config.fit.accumulate)
    clips = [callback for make in config.callbacks if isinstance(callback := make(), GradClip)]
    with session(config), explained(config), progress as bar:
        make_learner(config, make_loaders(config), callbacks=(finder, bar, *clips)).fit()
    return finder.curve()


def _report(curve: Curve, config: Config, out: Path) -> None:
    from trainer.figures.batches import plot_rates

    console = text_console()
    values = {"suggestion": curve.suggestion, "lrs": curve.lrs, "losses": curve.losses}
    with writing(f"--out {out}"):
        write_json(out.with_suffix(".json"), values | {"config": as_written(config.resolved)}, follow=True)
        plot_rates(curve.lrs, curve.losses, curve.smoothed, curve.suggestion, out)
    console.print(f"{amount(len(curve.lrs), 'step')}, learning rate {curve.lrs[0]:.2g} to {curve.lrs[-1]:.2g}")
    if curve.suggestion is not None:
        console.print(f"suggested: fit.lr={curve.suggestion:.2g}, a third of where the loss is lowest")
    else:
        console.print("no suggestion: the loss does not fall. More --steps, or another --from and --to, may show more.")
    console.print(f"{out}, .json")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser("trainer find_lr", "Raise the learning rate from step to step, and suggest one.", _EXAMPLES)
    parser.add_argument("--from", dest="start", type=positive_number(), default=_START, metavar="LR",
                        help=f"first learning rate (default: {_START:g})")  # fmt: skip
    parser.add_argument("--to", dest="end", type=positive_number(), default=_END, metavar="LR",
                        help=f"last learning rate (default: {_END:g})")  # fmt: skip
    parser.add_argument("--steps", type=whole_number(20, 100_000), default=_STEPS, metavar="N",
                        help=f"steps of the optimizer (default: {_STEPS})")  # fmt: skip
    parser.add_argument(
        "--out", type=png_file, metavar="FILE.png", help="the figure (default: in a new folder of outputs)"
    )
    with readable_errors():
        options, overrides = parser.split(arguments)
        config = parse_config(compose(overrides))
        if config.fit.resume is not None:
            raise UserError("fit.resume: the test starts with fresh weights. Allowed: null.")
        require_ranks(config)
        from trainer.run.config.checks import check_config  # PyTorch takes seconds to import

        check_config(config)
        curve = find_lr(config, options.start, options.end, options.steps)
        out = options.out or new_folder("-find_lr") / "lr_find.png"
        _report(curve, config, out)
    return 0 if curve.suggestion is not None else 1
