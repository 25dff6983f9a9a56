"""Find a learning rate with a range test (Smith 2017, arXiv:1506.01186).

The learning rate rises exponentially from step to step. The loss is first flat, then falls, and finally explodes. The
suggestion is a third of the rate with the lowest smoothed loss. Such a high rate works because `fit.lr` is the highest
rate of a schedule, used only briefly (Smith 2018, arXiv:1803.09820). The first tenth of the losses does not count,
because their moving average has not settled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

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
from trainer.loop.lazy_learner import Learner
from trainer.optim.schedules import exp
from trainer.run.config.schema import Config, new_folder, parse_config
from trainer.run.failures import explained
from trainer.run.jobs import require_ranks
from trainer.tasks.loss import weight_of

_START, _END, _STEPS = 1e-6, 10.0, 100

_EVERY = 10  # steps between checks of the losses, which wait for the device
DIVERGED = 4.0  # ratio of an exploded loss to the lowest loss
_WINDOW = 0.05  # share of the steps over which losses are averaged
_SETTLE = 0.1  # share of the steps to ignore at the start
_FALL = 0.02  # relative fall of the loss that a suggestion needs
_BELOW = 3.0  # ratio of the rate with the lowest loss to the suggestion

_EXAMPLES = """\
  python -m trainer find_lr aug=imagenette
  python -m trainer find_lr aug=imagenette data=folder data.root=DIR model=timm model.name=resnet18
  python -m trainer find_lr fit.optimizer=adamw --from 1e-7 --to 1 --steps 200 --out lr.png

Overrides are the same as for python -m trainer. The suggestion is for this model, data, optimizer, aug.size and batch
size. fit.stages and all callbacks except grad_clip are ignored. No weights are saved."""


@dataclass(frozen=True)
class Curve:
    """The result of a range test, up to the step before the loss exploded."""

    lrs: tuple[float, ...]  # learning rate of each step
    losses: tuple[float, ...]  # training loss of each step's batch, before the step
    smoothed: tuple[float, ...]  # running average of the losses
    suggestion: float | None  # None if the loss does not fall
    still_falls: bool  # whether the loss is lowest at the highest rate, and does not explode


def read_curve(lrs: Sequence[float], losses: Sequence[float], steps: int) -> Curve:
    """Smooth the losses, cut them off where they explode, and suggest a rate."""
    smoothed = smooth(losses, steps)
    pairs = enumerate(zip(smoothed, accumulate(smoothed, min), strict=True))
    exploded = (step for step, (loss, least) in pairs if not math.isfinite(loss) or loss > DIVERGED * least)
    end = next(exploded, len(smoothed))
    suggestion = suggest_rate(lrs[:end], smoothed[:end], skip=round(_SETTLE * steps))
    still_falls = smoothed[-1] == min(smoothed)  # never after an explosion
    return Curve(tuple(lrs[:end]), tuple(losses[:end]), tuple(smoothed[:end]), suggestion, still_falls)


def smooth(losses: Sequence[float], steps: int) -> list[float]:
    """Return the exponential moving average of losses corrected for its initial bias towards 0."""
    keep = 1 - 1 / max(1.0, _WINDOW * steps)
    averages = accumulate(losses, lambda average, loss: keep * average + (1 - keep) * loss, initial=0.0)
    return [average / (1 - keep**count) for count, average in enumerate(averages) if count]


def suggest_rate(lrs: Sequence[float], smoothed: Sequence[float], *, skip: int = 0) -> float | None:
    """Return the suggested rate, or None if the loss does not fall. The first `skip` steps do not count."""
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__, default=0)
    highest = max(smoothed[skip : lowest + 1], default=0.0)
    falls = lowest >= skip + 2 and highest - smoothed[lowest] >= _FALL * abs(highest)
    return lrs[lowest] / _BELOW if falls else None


class LRFinder(Callback):
    """Raises the learning rate from step to step, records the losses, and ends the fit when they explode.

    It skips validation. It checks the losses only every few steps, because each check waits for the device.
    """

    order = Phase.MEASURE  # the phase of the scheduler, which this callback replaces

    def __init__(self, start: float = _START, end: float = _END, steps: int = _STEPS) -> None:
        self._rise, self._steps = exp(start, end), steps

    def before_fit(self, learner: Learner) -> None:
        self._losses, self._done = torch.zeros(self._steps, device=learner.device), 0
        self._weights = torch.zeros_like(self._losses)

    def before_batch(self, learner: Learner) -> None:
        """Set the learning rate of the step. Its batches share the rate."""
        from trainer.optim.optimizers import set_value

        for group in learner.optimizer.param_groups:
            set_value(group, "lr", self._rate(self._done))

    def after_batch(self, learner: Learner) -> None:
        """Record the mean loss of a step. Every few steps, check whether to stop."""
        targets = learner.task.targets_of(learner.batch)
        weight = learner.progress.share * (weight_of(learner.loss_function, targets) / len(targets))
        self._losses[self._done] += learner.loss.detach() * weight
        self._weights[self._done] += weight
        if learner.progress.position.batch < sum(learner.progress.step_batches):
            return
        self._done += 1
        if self._done == self._steps or (self._done % _EVERY == 0 and len(self._read().losses) < self._done):
            raise CancelFit

    def before_validate(self, learner: Learner) -> None:
        raise CancelValidate

    def curve(self) -> Curve:
        """Return the measured curve. This waits for the device."""
        if len((curve := self._read()).losses) < 2:
            first = self._losses[0].item()
            raise UserError(
                f"the training loss explodes in the first two steps (at first, it is {first}). Set a smaller --from."
            )
        return curve

    def _read(self) -> Curve:
        losses = self._losses[: self._done] / self._weights[: self._done]
        return read_curve([*map(self._rate, range(self._done))], losses.tolist(), self._steps)

    def _rate(self, step: int) -> float:
        return self._rise(step / (self._steps - 1))


def find_lr(config: Config, start: float, end: float, steps: int) -> Curve:
    """Run a learning rate range test with the configured model, data and optimizer. It writes nothing."""
    if start >= end:
        raise UserError(f"--from {start:g} --to {end:g}: --to must be larger than --from. Set a larger --to.")
    from trainer.run.build import make_learner, make_loaders, session
    from trainer.run.teacher import distill

    # Stages are ignored, because the best rate depends on the image size.
    config = replace(config, fit=replace(config.fit, steps=steps, stages=()))
    finder, progress = LRFinder(start, end, steps), PassBar("learning rates", steps * config.fit.accumulate)
    clips = [callback for make in config.callbacks if isinstance(callback := make(), GradClip)]
    with session(config), explained(config), progress as bar:
        make_learner(config, make_loaders(config), callbacks=(finder, bar, *clips), distill=distill).fit()
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
        console.print(f"suggested: fit.lr={curve.suggestion:.2g}, a third of the rate with the lowest loss")
        if curve.still_falls:
            console.print("The loss still falls at the highest rate, so the best rate is unknown. Use a larger --to.")
    else:
        console.print("no suggestion: the loss does not fall. Try more --steps, or another --from and --to.")
    console.print(f"{out}, .json")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    parser = Parser("trainer find_lr", "Suggest a learning rate, based on a test with rising rates.", _EXAMPLES)
    parser.add_argument("--from", dest="start", type=positive_number(), default=_START, metavar="LR",
                        help=f"first learning rate (default: {_START:g})")  # fmt: skip
    parser.add_argument("--to", dest="end", type=positive_number(), default=_END, metavar="LR",
                        help=f"last learning rate (default: {_END:g})")  # fmt: skip
    parser.add_argument("--steps", type=whole_number(20, 100_000), default=_STEPS, metavar="N",
                        help=f"optimizer steps (default: {_STEPS})")  # fmt: skip
    parser.add_argument(
        "--out", type=png_file, metavar="FILE.png", help="file of the figure (default: in a new folder in outputs)"
    )
    with readable_errors():
        options, overrides = parser.split(arguments)
        config = parse_config(compose(overrides))
        if config.fit.resume is not None:
            raise UserError("fit.resume: the test starts with new weights. Set fit.resume=null.")
        require_ranks(config)
        from trainer.run.config.checks import check_config  # PyTorch takes seconds to import

        check_config(config)
        curve = find_lr(config, options.start, options.end, options.steps)
        out = options.out or new_folder("-find_lr") / "lr_find.png"
        _report(curve, config, out)
    return 0 if curve.suggestion is not None else 1
