"""The whole configuration: from the mapping that Hydra composed to checked and typed sections."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

import trainer.dashboard
import trainer.early_stopping
import trainer.ema
import trainer.pictures
import trainer.progress
import trainer.report  # noqa: F401  (each registers its callbacks)
from augment.compose import TOP, check_keys
from augment.config import Aug, parse_aug, plain_steps
from augment.dataset import Task
from augment.errors import UserError, suggest
from augment.params import Choice, Count, Flag, Number, Text, parse_params, parse_settings, setting, settings
from augment.registry import load_plugins
from augment.sources import SOURCES, Source, load_dataset, parse_data
from trainer.callback import Callback
from trainer.callbacks import complete_callbacks, parse_callbacks
from trainer.freeze import Freeze
from trainer.last_batch import check_last_batch
from trainer.losses import REGRESSION_LOSSES
from trainer.models import MODELS, Model, check_model, parse_model
from trainer.optimizers import OptimizerSettings, has_momentum, make_optimizer
from trainer.schedule import Schedule, constant, flat_cos, one_cycle
from trainer.stages import FullStage, Stage, complete_stages, parse_stages, plain_stages
from trainer.tasks import ALL_MONITORED, AUTO, MONITORED
from trainer.tta import TTA

Optimizers = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Fit(OptimizerSettings):
    """How to train.

    Attributes:
        stages: in which the size of pictures and batches changes; empty: it does not.
    """

    epochs: int = setting(Count(default=30, within=(1, 10**6), doc="passes over the training data"))
    batch_size: int = setting(Count(default=64, within=(1, 10**6), doc="pictures in a batch"))
    schedule: str = setting(
        Choice(default="one_cycle", options=("one_cycle", "flat_cos", "constant"), doc="of the learning rate")
    )
    warmup: float = setting(Number(default=0.3, within=(0, 1), doc="one_cycle: share of the run in which lr rises"))
    flat: float = setting(Number(default=0.75, within=(0, 1), doc="flat_cos: share of the run before lr falls"))
    start_factor: float = setting(Number(default=0.04, within=(0, 1), doc="one_cycle: first lr over the highest"))
    momentum_low: float | None = setting(
        Number(
            optional=True, within=(0, 0.9999), doc="one_cycle: momentum where lr is highest; null: it does not change"
        )
    )
    end_factor: float = setting(Number(default=0.0, within=(0, 1), doc="one_cycle, flat_cos: last lr over the highest"))
    device: str = setting(
        Choice(default="auto", options=("auto", "cpu", "cuda"), others={"gpu": "cuda"}, doc="where to train")
    )
    precision: str = setting(
        Choice(
            default="fp32",
            options=("fp32", "tf32", "bf16"),
            doc="of the forward pass; tf32: fp32, its matrix products rounded to TF32 on a GPU; bf16: autocast",
        )
    )
    graph: bool = setting(
        Flag(default=True, doc="on a GPU: record the work of a batch as CUDA graphs, which costs Python nothing")
    )
    compile: bool = setting(Flag(default=False, doc="compile the model with torch.compile"))
    accumulate: int = setting(
        Count(
            default=1,
            within=(1, 10**6),
            doc="batches whose gradients make one step of the optimizer, their mean; data.balance=weights is relative "
            "within each of them",
        )
    )
    label_smoothing: float = setting(
        Number(default=0, within=(0, 0.999), doc="share of every target that is spread over all classes, in training")
    )
    regression_loss: str = setting(
        Choice(
            default="huber",
            options=tuple(REGRESSION_LOSSES),
            doc="what is minimized where numbers are predicted; huber: squares of errors up to 1, which bear a higher "
            "lr than mse does",
        )
    )
    standardize: bool = setting(
        Flag(
            default=True,
            doc="where numbers are predicted: learn them in standard deviations from the mean of the train split, in "
            "which their loss is; everything else is in their own units",
        )
    )
    limit_batches: int | None = setting(
        Count(optional=True, within=(1, 10**9), doc="batches of each pass at most, to try things out")
    )
    validate_every: int = setting(
        Count(default=1, within=(1, 10**6), doc="epochs between two validations; the last epoch always has one")
    )
    drop_last: bool = setting(
        Flag(
            default=False,
            doc="leave out the smaller last training batch, of other pictures in each epoch; needed where it is a "
            "single picture, on which batch norm cannot train if the picture is small",
        )
    )
    threads: int | None = setting(
        Count(optional=True, within=(1, 1024), doc="CPU threads of each input pipeline; null: one a core, at most 16")
    )
    tta: str = setting(
        Choice(default="none", options=tuple(TTA), doc="views of a picture whose probabilities validation averages")
    )
    resume: str | None = setting(Text(optional=True, doc="folder of a run to go on with"))
    stages: tuple[Stage, ...] = field(default=())

    def torch_device(self) -> torch.device:
        """Return the device.

        Raises:
            UserError: a GPU is asked for where there is none.
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("fit.device: cuda, but PyTorch sees no GPU here. Allowed: auto, cpu.")
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        return torch.device("cuda" if cuda else "cpu")

    def cpu_threads(self) -> int:
        """Return the CPU threads of a pipeline."""
        return self.threads or min(16, len(os.sched_getaffinity(0)))

    def full_stages(self, size: int) -> tuple[FullStage, ...]:
        """Return the stages with nothing left open, for pictures of `size` px where a stage says nothing.

        Raises:
            UserError: they do not have as many epochs as the fit.
        """
        if not self.stages:
            return ()
        return complete_stages(self.stages, epochs=self.epochs, size=size, batch_size=self.batch_size)

    def lr_schedule(self) -> Schedule:
        """Return the schedule of the learning rate."""
        start, end = self.lr * self.start_factor, self.lr * self.end_factor
        if self.schedule == "one_cycle":
            return one_cycle(self.lr, start=start, end=end, warmup=self.warmup)
        if self.schedule == "flat_cos":
            return flat_cos(self.lr, end=end, flat=self.flat)
        return constant(self.lr)

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedule of everything that changes during the run, by its name.

        Raises:
            UserError: the momentum cannot change as asked.
        """
        schedules = {"lr": self.lr_schedule()}
        if self.momentum_low is not None:
            if self.schedule != "one_cycle":
                raise UserError(
                    f"fit.momentum_low={self.momentum_low:g}: only fit.schedule=one_cycle changes it. Allowed: null."
                )
            if self.momentum_low > self.momentum:
                raise UserError(
                    f"fit.momentum_low={self.momentum_low:g}: above fit.momentum. Allowed: up to {self.momentum:g}."
                )
            high, low = self.momentum, self.momentum_low
            schedules["momentum"] = one_cycle(low, start=high, end=high, warmup=self.warmup)
        return schedules

    def make_optimizer(self, network: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a network."""
        return make_optimizer(self, network)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked configuration.

    Attributes:
        data: the source of the pictures.
        model: the model's settings.
        aug: the augmentation, mean and std filled in.
        fit: how to train.
        callbacks: what makes each configured callback.
        seed: of everything random.
        resolved: the whole as plain values, defaults included, to write down.
    """

    data: Source
    model: Model
    aug: Aug
    fit: Fit
    callbacks: tuple[Callable[[], Callback], ...]
    seed: int
    resolved: Mapping[str, Any]


def parse_config(given: Mapping[str, Any]) -> Config:
    """Check the composed configuration.

    Args:
        given: mapping with the sections data, model, aug, fit, callbacks and the keys seed and plugins.

    Raises:
        UserError: names the key path, what was given and what is allowed.
    """
    check_keys(given, inner_keys())
    top = parse_params(TOP, {n: v for n, v in given.items() if n in TOP}, "")
    load_plugins(top["plugins"], "plugins")
    model = parse_model(given.get("model"))
    aug = parse_aug(given.get("aug"))
    if norm := model.normalization():
        aug = replace(aug, mean=aug.mean or norm[0], std=aug.std or norm[1])
    data, fit = parse_data(given.get("data")), parse_fit(given.get("fit"))
    fit.full_stages(aug.size)
    callbacks = given.get("callbacks") or {}
    return Config(
        data=data,
        model=model,
        aug=aug,
        fit=fit,
        callbacks=parse_callbacks(callbacks),
        seed=top["seed"],
        resolved={
            "data": {"source": _name_of(data, SOURCES), **_plain(data)},
            "model": {"kind": _name_of(model, MODELS), **_plain(model)},
            "aug": _plain(aug)
            | {"views": _plain(aug.views)}
            | {split: plain_steps(aug.steps(split)) for split in ("train", "val")},
            "fit": _plain(fit) | {"stages": plain_stages(fit.stages)},
            "callbacks": complete_callbacks(callbacks),
            "seed": top["seed"],
            "plugins": list(top["plugins"]),
        },
    )


def inner_keys() -> list[str]:
    """Return the key paths of all settings that are in one place whatever is chosen, and those of the sources."""
    sections = [("fit", Fit), ("aug", Aug), *(("data", cls) for cls in SOURCES.values())]
    return [f"{section}.{name}" for section, cls in sections for name in settings(cls)]


def parse_fit(given: object, key: str = "fit") -> Fit:
    """Check the `fit` section and return it typed.

    Raises:
        UserError: an unknown key, or a value that is not allowed.
    """
    if not isinstance(given, Mapping):
        return parse_settings(Fit, given, key)
    known = {**settings(Fit), "stages": None}
    for name in given:
        if name not in known:
            raise UserError(f"{key}.{name}: unknown key.{suggest(str(name), known)}")
    fit = parse_settings(Fit, {name: value for name, value in given.items() if name != "stages"}, key)
    return replace(fit, stages=parse_stages(given.get("stages"), f"{key}.stages"))


def check_config(config: Config) -> None:
    """Check what can only be found by trying, before anything is written: device, data, model, optimizer.

    Raises:
        UserError: as `parse_config`.
    """
    config.fit.torch_device()
    dataset = load_dataset(config.data)
    classes = dataset.classes
    _check_monitors(config, dataset.task)
    size = config.aug.size
    network = check_model(config.model, len(classes), size)
    for stage in config.fit.full_stages(size):
        if stage.size != size:
            check_model(config.model, len(classes), size, fed=stage.size, key=f"fit.stages.{stage.name}.size")
    callbacks = [make() for make in config.callbacks]
    for callback in callbacks:
        callback.check(network)
    freezes = (callback for callback in callbacks if isinstance(callback, Freeze))
    frozen = {name for freeze in freezes for name in freeze.frozen(network, config.fit.epochs - 1)}
    check_last_batch(config.fit, network, len(dataset.train), size, frozen=frozen)
    optimizer = config.fit.make_optimizer(network)
    if "momentum" in config.fit.schedules() and not has_momentum(optimizer):
        raise UserError(f"fit.momentum_low: {config.fit.optimizer} has no momentum. Allowed: null.")


def _check_monitors(config: Config, task: Task) -> None:
    """Check that what callbacks go by is measured."""
    for name, values in config.resolved["callbacks"].items():
        monitor = values.get("monitor")
        if monitor in ALL_MONITORED and monitor not in (AUTO, *MONITORED[task]):
            raise UserError(
                f"callbacks.{name}.monitor: {monitor} is not measured with targets of the kind {task}. "
                f"Allowed: {', '.join((AUTO, *MONITORED[task]))}."
            )


def _name_of(settings: object, registry: Mapping[str, type]) -> str:
    return next(name for name, cls in registry.items() if type(settings) is cls)


def _plain(section: Any) -> dict[str, Any]:
    """Return a section as plain values that parse to the same section."""
    values = {f.name: getattr(section, f.name) for f in fields(section)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
