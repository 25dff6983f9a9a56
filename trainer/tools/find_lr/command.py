"""Raise the learning rate from step to step, and suggest one.

`trainer.tools.find_lr.curve` describes how the losses are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from augment.cli.compose import compose
from augment.cli.parser import Parser, png_file, positive_number, readable_errors, whole_number, writing
from augment.support.console import text_console
from augment.support.errors import UserError
from augment.support.files import write_json
from augment.support.memory import keep_freed_memory
from augment.support.secrets import as_written
from augment.support.text import amount
from trainer.callbacks.progress import PassBar
from trainer.loop.callback import Callback, CancelFit, CancelValidate, Phase
from trainer.optim.schedule import exp
from trainer.run.config import Config, new_folder, parse_config
from trainer.run.failures import explain_memory
from trainer.run.jobs import require_ranks
from trainer.tools.find_lr.curve import Curve, read_curve

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

_START, _END, _STEPS = 1e-6, 10.0, 100

_EVERY = 10  # steps between two checks of the losses, which wait for the device

_EXAMPLES = """\
  python -m trainer find_lr +aug=imagenette
  python -m trainer find_lr +aug=imagenette data=folder data.root=DIR model=timm model.name=resnet18
  python -m trainer find_lr fit.optimizer=adamw --from 1e-7 --to 1 --steps 200 --out lr.png

Overrides are those of python -m trainer. The suggestion holds for the model, data, optimizer, aug.size and batch size
given here; stages are ignored. No weights are kept."""


class LRFinder(Callback):
    """Raise the learning rate from step to step and record the losses; end the fit when they explode.

    Validation is skipped. The losses are checked, which waits for the device, only every few steps.

    Args:
        start: learning rate of the first step.
        end: learning rate of the last step.
        steps: number of steps; all of the learner's if it has fewer.
    """

    order = Phase.MEASURE  # as the scheduler, which it replaces

    def __init__(self, start: float = _START, end: float = _END, steps: int = _STEPS) -> None:
        self._rise, self._wanted = exp(start, end), steps

    def before_fit(self, learner: Learner) -> None:
        """Spread the rise over the steps; the learner may have more."""
        import torch

        batches = map(learner.batches_in, range(learner.epochs))
        self._available = sum(-(-count // learner.accumulate) for count in batches)
        self._steps = min(self._wanted, self._available)
        self._losses = torch.zeros(self._steps, device=learner.device)
        self._done = 0

    def before_batch(self, learner: Learner) -> None:
        """Set the learning rate, the same for all batches of a step."""
        from trainer.optim.optimizers import set_value

        for group in learner.optimizer.param_groups:
            set_value(group, "lr", self._rate(self._done))

    def after_batch(self, learner: Learner) -> None:
        """Keep the loss, the mean over the images of a step; check every few steps whether to stop."""
        self._losses[self._done] += learner.loss.detach() * learner.share
        if learner.position.batch < sum(learner.group):
            return
        self._done += 1
        if self._done == self._available:
            return  # the fit ends by itself
        if self._done == self._steps or (self._done % _EVERY == 0 and len(self._read().losses) < self._done):
            raise CancelFit

    def before_validate(self, learner: Learner) -> None:
        """Skip validation."""
        raise CancelValidate

    def curve(self) -> Curve:
        """Return the losses of the test; waits for the device.

        Raises:
            UserError: the loss was not finite from the beginning.
        """
        curve = self._read()
        if len(curve.losses) < 2:
            first = self._losses[0].item()
            raise UserError(f"the training loss is {first} in the first steps. Allowed: a smaller --from.")
        return curve

    def _read(self) -> Curve:
        rates = [self._rate(step) for step in range(self._done)]
        return read_curve(rates, self._losses[: self._done].tolist(), self._steps)

    def _rate(self, step: int) -> float:
        return self._rise(step / max(1, self._steps - 1))


def find_lr(config: Config, start: float, end: float, steps: int) -> Curve:
    """Run a learning rate range test: model, data and optimizer as configured, nothing is written.

    Args:
        config: the checked configuration.
        start: the first learning rate.
        end: the last learning rate, larger than `start`.
        steps: optimizer steps; passes over the training data are repeated as needed.

    Raises:
        UserError: the loss is not finite from the beginning, the range is empty, or the GPU's memory is too small.
    """
    if start >= end:
        raise UserError(f"--from {start:g} --to {end:g}: not allowed. Allowed: numbers above 0, the second the larger.")
    from trainer.run.build import make_learner, make_loaders, release_memory, using

    device = config.fit.torch_device()
    if device.type == "cpu":
        keep_freed_memory()
    # As many epochs as could be needed: the finder ends the fit. Stages are ignored, as sizes change the best rate.
    fit = replace(config.fit, epochs=steps, stages=())
    config = replace(config, fit=fit)
    finder = LRFinder(start, end, steps)
    try:
        with (
            using(device),
            explain_memory(config, training=True),
            PassBar("learning rates", steps * fit.accumulate) as bar,
        ):
            make_learner(config, make_loaders(config), callbacks=(finder, bar)).fit()
        return finder.curve()
    finally:
        release_memory()


def _report(curve: Curve, config: Config, out: Path) -> None:
    from trainer.figures.curves import plot_rates

    console, rates = text_console(), curve.rates
    values = {"suggestion": curve.suggestion, **rates, "lrs": curve.lrs, "losses": curve.losses}
    with writing(f"--out {out}"):
        write_json(out.with_suffix(".json"), values | {"config": as_written(config.resolved)})
        plot_rates(curve.lrs, curve.losses, curve.smoothed, rates, out)
    console.print(f"{amount(len(curve.lrs), 'step')}, learning rate {curve.lrs[0]:.2g} to {curve.lrs[-1]:.2g}")
    if not rates:
        console.print("no suggestion: the loss does not fall. More --steps, or another --from and --to, may show more.")
    else:
        console.print(f"suggested: fit.lr={curve.suggestion:.2g}, a third of where the loss is lowest")
        console.print(
            f"steepest descent at {rates['steepest']:.2g}, middle of the descent (valley) {rates['valley']:.2g}"
        )
    console.print(f"{out}, .json")


def _parser() -> Parser:
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
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(arguments)
        config = parse_config(compose(overrides))
        if config.fit.resume is not None:
            raise UserError("fit.resume: the test starts with fresh weights. Allowed: null.")
        require_ranks(config)
        from trainer.run.check import check_config  # PyTorch takes seconds to import

        check_config(config)
        curve = find_lr(config, options.start, options.end, options.steps)
        out = options.out or new_folder("-find_lr") / "lr_find.png"
        _report(curve, config, out)
    return 0 if curve.suggestion is not None else 1
