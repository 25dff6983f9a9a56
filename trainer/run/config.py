"""The whole configuration: turn the mapping that Hydra composed into checked and typed sections.

Nothing here imports PyTorch or DALI; `trainer.run.check` checks what has to be tried out.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf

from augment.cli.compose import TOP, check_keys
from augment.data.dataset import Dataset
from augment.data.images import portable_name
from augment.data.sources import SOURCES, LeftOut, Source, load_dataset, parse_data
from augment.params import Count, Flag, Text, parse_params, parse_settings, setting, settings
from augment.recipe.op import load_plugins
from augment.recipe.steps import IMAGENET_MEAN, IMAGENET_STD, Aug, parse_aug, plain_steps
from augment.support.errors import UserError, first_line, suggest
from augment.support.files import read_some, write_json
from augment.support.secrets import as_written
from augment.support.yaml_files import read_yaml
from trainer.callbacks.registry import complete_callbacks, known_callbacks, parse_callbacks
from trainer.loop.callback import Callback
from trainer.loop.settings import LoopSettings
from trainer.loop.stages import FitStage, StageSettings, complete_stages, parse_stages, plain_stages
from trainer.models.registry import MODELS, Channels, Model, parse_model
from trainer.optim.settings import ScheduleSettings
from trainer.run.labels import RunLabels
from trainer.tasks.settings import LossSettings

CONFIG_FILE = "config.yaml"
LEFT_OUT_FILE = "left_out.json"


@dataclass(frozen=True, kw_only=True)
class Fit(LoopSettings, LossSettings, ScheduleSettings):
    """How to train: the settings of the loop, the loss, the schedules and the optimizer, and how batches are made.

    Attributes:
        stages: the stages that change the size of images and batches; empty: sizes do not change.
    """

    batch_size: int = setting(Count(default=64, within=(1, 10**6), doc="images in a batch"))
    drop_last: bool = setting(
        Flag(
            default=False,
            doc=(
                "leave out the smaller last training batch, which differs between epochs; needed if it is a single "
                "small image, on which batch norm cannot train"
            ),
        )
    )
    threads: int | None = setting(
        Count(optional=True, within=(1, 1024), doc="CPU threads of each input pipeline; null: one per core, at most 16")
    )
    resume: str | None = setting(
        Text(
            optional=True,
            doc=(
                "folder of a run to resume; auto: the newest run of the same configuration unless it has finished, "
                "or a new run if there is none"
            ),
        )
    )
    stages: tuple[StageSettings, ...] = field(default=())

    def cpu_threads(self) -> int:
        """Return the CPU threads of a pipeline."""
        return self.threads or min(16, len(os.sched_getaffinity(0)))

    def full_stages(self, size: int) -> tuple[FitStage, ...]:
        """Return the stages with all settings filled in; images have `size` px unless a stage sets another size.

        Raises:
            UserError: the stages' epochs do not add up to those of the fit.
        """
        if not self.stages:
            return ()
        return complete_stages(self.stages, epochs=self.epochs, size=size, batch_size=self.batch_size)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked configuration.

    Attributes:
        data: the source of the images.
        model: the model's settings.
        aug: the augmentation, with mean and std filled in.
        fit: how to train.
        callbacks: a factory for each configured callback.
        seed: the seed of everything random.
        run: the run's name and tags.
        resolved: the whole configuration as plain values, including defaults, to be written to a file.
    """

    data: Source
    model: Model
    aug: Aug
    fit: Fit
    callbacks: tuple[Callable[[], Callback], ...]
    seed: int
    run: RunLabels
    resolved: Mapping[str, Any]

    @property
    def dataset(self) -> Dataset:
        """The images; for a run to resume, those that it had, including images that have turned bad since."""
        run = self.fit.resume
        return load_dataset(self.data, None if run is None else left_out_of(Path(run)))

    @property
    def source_name(self) -> str:
        """The source of the images, and the part of it that is used."""
        return ", ".join(filter(None, (self.resolved["data"]["source"], self.data.part)))

    @property
    def model_name(self) -> str:
        """The model's own name if it has one, otherwise its kind."""
        return str(self.resolved["model"].get("name", self.resolved["model"]["kind"]))


def parse_config(given: Mapping[str, Any]) -> Config:
    """Check the composed configuration.

    Args:
        given: mapping with the sections data, model, aug, fit, callbacks, run and the keys seed and plugins.

    Raises:
        UserError: names the key path, what was given and what is allowed.
    """
    check_keys(given, inner_keys())
    top = parse_params(TOP, {n: v for n, v in given.items() if n in TOP}, "")
    load_plugins(top["plugins"], "plugins")
    model = parse_model(given.get("model"))
    aug = parse_aug(given.get("aug"))
    data, fit = parse_data(given.get("data")), parse_fit(given.get("fit"))
    if (aug.mean is None or aug.std is None) and (norm := _normalization(model, fit.resume)):
        aug = replace(aug, mean=aug.mean or norm[0], std=aug.std or norm[1])
    fit.full_stages(aug.size)
    callbacks = given.get("callbacks") or {}
    run = parse_settings(RunLabels, given.get("run"), "run")
    return Config(
        data=data,
        model=model,
        aug=aug,
        fit=fit,
        callbacks=parse_callbacks(callbacks),
        seed=top["seed"],
        run=run,
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
            "run": _plain(run),
        },
    )


def _normalization(model: Model, resume: str | None) -> tuple[Channels, Channels] | None:
    """Return mean and std that the weights to start from were trained with; None: no preference.

    A run to resume has written them down; the weights that it started from may be gone.
    """
    run = None if model.weights is None else run_of(resume or model.weights)
    if run is None:
        return model.normalization()
    saved = load_config(run).get("aug")
    given = {name: saved.get(name) for name in ("mean", "std")} if isinstance(saved, Mapping) else {}
    aug = parse_aug(given)
    return aug.mean or IMAGENET_MEAN, aug.std or IMAGENET_STD


def run_of(weights: str) -> Path | None:
    """Return the folder of the run whose weights `model.weights` names; None: they are of no run."""
    path = Path(weights).expanduser()
    folder = path if path.is_dir() else path.parent
    return folder if (path.is_dir() or path.suffix == ".pt") and (folder / CONFIG_FILE).is_file() else None


def inner_keys() -> list[str]:
    """Return the key paths of the settings of fit, aug and run, and of all sources."""
    sections = [("fit", Fit), ("aug", Aug), *(("data", cls) for cls in SOURCES.values()), ("run", RunLabels)]
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


def new_folder(kind: str = "") -> Path:
    """Return the path of a new folder in outputs/ for a run, or for whatever `kind` names; it is not created yet."""
    now = datetime.now()
    # Two runs that start in the same second must not share a folder.
    return Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-{uuid4().hex[:6]}{kind}"


def config_text(config: Config) -> str:
    """Return the content of a run's config.yaml."""
    return OmegaConf.to_yaml(as_written(config.resolved))


def identity(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration without what changes no result: `fit.resume`, `run` and trackers.

    Two configurations are the same if these values are equal, also as JSON with sorted keys: where the order of keys
    counts, among steps and stages, mappings become lists of pairs.

    Args:
        config: the configuration, or its plain values as `load_config` reads them from a run's folder.
    """
    plain = as_written(config.resolved if isinstance(config, Config) else config)
    known = known_callbacks()

    def section(name: str) -> dict[str, Any]:
        return dict(plain[name]) if isinstance(plain.get(name), Mapping) else {}

    fit = {name: value for name, value in section("fit").items() if name != "resume"}
    trackers = {name for name in section("callbacks") if name in known and known[name].tracks}
    return {name: value for name, value in plain.items() if name != "run"} | {
        "aug": {name: _pairs(value) if name in ("train", "val") else value for name, value in section("aug").items()},
        "fit": fit | {"stages": _pairs(fit.get("stages"))},
        "callbacks": {name: value for name, value in section("callbacks").items() if name not in trackers},
    }


def config_file(folder: Path) -> Path:
    """Return the file with the configuration of a run.

    Raises:
        UserError: the folder has none.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise UserError(f"{folder}: no {CONFIG_FILE} in it. Allowed: the folder of a run.")
    return file


def load_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a run from its folder.

    Interpolations stay text; `augment.cli.trust` describes when they are resolved.

    Raises:
        UserError: the folder has none, or it cannot be read.
    """
    file = config_file(folder)
    loaded = read_yaml(file)
    if not isinstance(loaded, dict):
        raise UserError(f"{file}: not the configuration of a run.")
    return {str(key): value for key, value in loaded.items()}


def write_left_out(folder: Path, dataset: Dataset) -> None:
    """Record which images the check left out, so that the run can be resumed exactly after others have turned bad.

    Raises:
        OSError: the file cannot be written.
    """
    splits = {"train": dataset.train, "val": dataset.val}
    names = {name: [portable_name(image.file) for image in split.left_out] for name, split in splits.items()}
    write_json(folder / LEFT_OUT_FILE, names)


def left_out_of(folder: Path) -> LeftOut | None:
    """Return what `write_left_out` wrote, or None if there is no such file.

    Raises:
        UserError: the file cannot be read.
    """
    file = folder / LEFT_OUT_FILE
    try:
        names = json.loads(read_some(file))
        return frozenset(map(str, names["train"])), frozenset(map(str, names["val"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(f"{file}: not the list of images that a run left out ({first_line(error)}).") from error


def _name_of(settings: object, registry: Mapping[str, type]) -> str:
    return next(name for name, cls in registry.items() if type(settings) is cls)


def _pairs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[name, _pairs(inner)] for name, inner in value.items()]
    return [_pairs(inner) for inner in value] if isinstance(value, list) else value


def _plain(section: Any) -> dict[str, Any]:
    """Return a section as plain values that parse to the same section."""
    values = {f.name: getattr(section, f.name) for f in fields(section)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
