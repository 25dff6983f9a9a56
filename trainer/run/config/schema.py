"""Parse the configuration that Hydra composed into checked, typed sections.

Nothing here imports PyTorch or DALI. Checks that need them are in `trainer.run.config.checks`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf

from augment.cli.compose import TOP, check_keys, keys_of
from augment.cli.trust import KINDS, SETTINGS
from augment.data.dataset import Dataset
from augment.data.format_detection import measured
from augment.data.selection import take_some
from augment.data.sources import SOURCES, Source, load_dataset, parse_data
from augment.data.sources.registry import PIXEL_SETTINGS
from augment.params import Text, Texts, parse_params, parse_settings, plain_value, setting, settings
from augment.params.pixel_format import RGB
from augment.recipe.captions import is_random
from augment.recipe.op import OPS
from augment.recipe.step import plain_steps
from augment.recipe.steps import IMAGENET_MEAN, IMAGENET_STD, Aug, parse_aug, plain_views
from augment.support.errors import UserError
from augment.support.files import expanded, require_in
from augment.support.formatting import amount, clip
from augment.support.nested import section_of
from augment.support.process import launched_ranks
from augment.support.secrets import as_written, masked
from augment.support.user_code import load_plugins
from augment.support.yaml_files import read_yaml
from trainer.loop.callback import Callback, known_callbacks, parse_callbacks
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.loop.resize_stages import plain_stages
from trainer.models.registry import MODELS, Channels, Model, parse_model
from trainer.run.config.equality import TEST_DATA
from trainer.run.config.fit import AUTO, Fit, check_ranks, parse_fit
from trainer.run.config.sweep_settings import LAUNCHERS, SearchSettings

CONFIG_FILE = "config.yaml"
PLAN_FILE = "plan.txt"

# How messages describe the argument RUN.
ALLOWED_RUN = "the folder of a run, SWEEP:best, or last for the latest run"

# Names that other programs use for the folder of a run.
_RUN_DIR_NAMES = ("out", "out_dir", "output", "output_dir", "outdir", "save_dir", "run_dir", "log_dir", "logdir")

# Settings that earlier versions wrote to `CONFIG_FILE`, and that are ignored.
_IGNORED = [("data", "max_bad"), ("fit", "teacher_digest")]

# `augment.cli.trust` needs these sections to decide which values of a stranger's folder are used.
KINDS |= {"model": lambda: MODELS, "callbacks": known_callbacks}
SETTINGS["fit"] = Fit


@dataclass(frozen=True, kw_only=True)
class RunLabels:
    """The name and tags of a run."""

    name: str | None = setting(
        Text(
            optional=True,
            doc="name in the report and in trackers. Default: the overrides that a sweep varies, or the folder's name",
        )
    )
    tags: tuple[str, ...] = setting(Texts(default=(), doc="tags in summary.json and in trackers"))

    @property
    def written_tags(self) -> tuple[str, ...]:
        """The tags, without secrets."""
        return tuple(as_written(self.tags))


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked configuration."""

    data: Source
    model: Model
    aug: Aug  # the augmentation, with mean and std filled in
    fit: Fit
    callbacks: tuple[Callable[[], Callback], ...]  # a factory for each configured callback
    seed: int
    run: RunLabels
    resolved: Mapping[str, Any]  # all values including defaults, as plain values for a file
    notes: tuple[str, ...] = ()  # sentences about the configuration, printed at the start

    @property
    def dataset(self) -> Dataset:
        """The dataset.

        With `fit.limit_batches`, validation uses a random sample of the images, because sources list them by class.
        """
        dataset, limit = load_dataset(self.data), self.fit.limit_batches
        if limit is None:
            return dataset
        return replace(dataset, val=take_some(dataset.val, limit * self.fit.images, self.data.split_seed))

    @cached_property
    def recipe(self) -> Aug:
        """The augmentation for the pixel format of the dataset.

        The mean and std of initial weights apply only to images with the same number of channels.
        """
        dataset, aug = self.dataset, self.aug
        given: dict[str, Any] = {"mean": aug.mean, "std": aug.std}
        misfit = [
            name for name, value in given.items() if isinstance(value, tuple) and len(value) != dataset.pixels.channels
        ]
        if misfit:
            of_weights = dict(zip(given, _normalization(self.model, self.fit.resume) or (None, None), strict=True))
            given.update({name: None for name in misfit if given[name] == of_weights[name]})
            aug = replace(aug, **given)
        return replace(aug, pixels=measured(dataset, aug.mean, aug.std))

    def sized(self, size: int, why: str) -> "Config":
        """Return the configuration with a new batch size, and scale `fit.lr` from `fit.base_batch_size` to it.

        The rate of SGD is proportional to the batch size (Goyal et al. 2017, arXiv:1706.02677). The rate of other
        optimizers is proportional to its square root (Malladi et al. 2022, arXiv:2205.10330).
        """
        ratio = size / self.fit.base_batch_size
        factor = ratio if "sgd" in self.fit.optimizer.lower() else ratio**0.5
        rate = float(f"{self.fit.lr * factor:.4g}")
        note = f"fit.batch_size=auto: {why}, so batches have {amount(size, 'image')} and fit.lr={rate:g}"
        resolved = {**self.resolved, "fit": {**self.resolved["fit"], "batch_size": size, "lr": rate}}
        fit = replace(self.fit, batch_size=size, lr=rate)
        return replace(self, fit=fit, resolved=resolved, notes=(*self.notes, note))

    @property
    def asked_metrics(self) -> tuple[str, ...]:
        """The metrics that `fit.metrics` and the callbacks name."""
        monitors = (values.get("monitor") for values in self.resolved["callbacks"].values())
        return (*self.fit.metrics, *filter(None, monitors))

    @property
    def model_name(self) -> str:
        """The model's name, or its kind if it has no name."""
        return str(self.resolved["model"].get("name") or self.resolved["model"]["kind"])


def parse_config(given: Mapping[str, Any]) -> Config:
    """Check and parse a composed configuration, which maps section names, `seed` and `plugins` to their values.

    Raises:
        UserError: the first mistake, with its key.
    """
    check_keys(given, inner_keys())
    if not given.keys() & {"data", "model"}:
        raise UserError(
            "The configuration lacks the sections data and model. Add `defaults: [config, _self_]` to the file that "
            "--config-name chooses, or add both sections."
        )
    top = parse_params(TOP, {n: v for n, v in given.items() if n in TOP}, "")
    load_plugins(top["plugins"], "plugins")
    _check_sections(given)
    model = parse_model(given.get("model"))
    aug = parse_aug(given.get("aug"))
    data, fit = parse_data(given.get("data")), parse_fit(given.get("fit"))
    if (aug.mean is None or aug.std is None) and (norm := _normalization(model, fit.resume)):
        aug = replace(aug, mean=aug.mean or norm[0], std=aug.std or norm[1])
    if launched_ranks() > 1:
        fit = replace(fit, gpus=fit.gpus or launched_ranks())
    if fit.batch_size == AUTO and fit.resume is not None:  # a resumed run keeps the size and rate that it found
        saved = parse_fit(section_of(load_config(Path(fit.resume)), "fit"))
        fit = replace(fit, batch_size=saved.batch_size, lr=saved.lr)
    if fit.batch_size == AUTO and (fit.stages or aug.cache == "gpu"):
        raise UserError("fit.batch_size=auto does not work with fit.stages or aug.cache=gpu. Set a number of images.")
    check_ranks(fit, aug.size)
    callbacks, known = parse_callbacks(given.get("callbacks") or {}), known_callbacks()
    run = parse_settings(RunLabels, given.get("run"), "run")
    resolved = {
        "data": _plain_data(data),
        "model": {"kind": _name_of(model, MODELS), **_plain(model)},
        "aug": _plain(aug)
        | {"views": plain_views(aug)}
        | {split: plain_steps(aug.steps(split)) for split in ("train", "val")},
        "fit": _plain(fit) | {"stages": plain_stages(fit.stages)},
        "callbacks": callbacks,
        "seed": top["seed"],
        "plugins": list(top["plugins"]),
        "run": _plain(run),
    }
    return Config(
        data=data,
        model=model,
        aug=aug,
        fit=fit,
        callbacks=tuple(partial(known[name], **values) for name, values in callbacks.items()),
        seed=top["seed"],
        run=run,
        resolved=resolved,
        notes=tuple(_notes(given.get("aug") or {}, data, aug, fit)),
    )


def _notes(given: Mapping[str, Any], data: Source, aug: Aug, fit: Fit) -> Iterator[str]:
    """Yield warnings: a setting has no effect, no recipe was chosen, or validation is random."""
    if fit.steps is not None and fit.epochs != settings(Fit)["epochs"].default:
        yield f"fit.epochs={fit.epochs} has no effect, because fit.steps={fit.steps} sets the length"
    if not given.keys() & {"train", "views"}:
        yield (
            "aug: no recipe was chosen, so images are not augmented. Choose aug=imagenette, or for masks aug=segment, "
            "for boxes aug=detect, for keypoints aug=keypoints, for channels other than RGB aug=bands. To train "
            "without augmentation and without this note, set aug=none"
        )
    if random := [f"aug.val.{step.key}" for step in aug.val if is_random(step)]:
        yield f"{', '.join(random)}: validation is random, so scores of epochs and runs also differ by chance"


def _normalization(model: Model, resume: str | None) -> tuple[Channels, Channels] | None:
    """Return the mean and std that the initial weights were trained with, or None if they do not require any.

    A resumed run reads them from its folder, because the weights that it started from may be gone.
    """
    run = None if model.weights is None else run_of(resume or model.weights)
    if run is None:
        return model.normalization()
    saved = section_of(load_config(run), "aug")
    aug = parse_aug({name: saved.get(name) for name in ("mean", "std")})
    if resume is None and (run / BEST).is_file():
        with suppress(UserError):  # `check_weights` reports a damaged file
            pixels = load(run / BEST, BestModel).pixel_format
            aug = aug if pixels == RGB else replace(aug, mean=pixels.mean, std=pixels.std)
    return aug.mean or IMAGENET_MEAN, aug.std or IMAGENET_STD


def run_of(weights: str) -> Path | None:
    """Return the folder of the run whose weights `model.weights` names, or None if they come from elsewhere."""
    path = expanded(weights)
    folder = path if path.is_dir() else path.parent
    return folder if (path.is_dir() or path.suffix == ".pt") and (folder / CONFIG_FILE).is_file() else None


def inner_keys() -> dict[str, str]:
    """Return the key paths of all settings and callbacks, by name and by alias."""
    keys = _callback_keys() | dict.fromkeys(_RUN_DIR_NAMES, "hydra.run.dir")
    keys |= {name: f"hydra.launcher.{name}" for cls in LAUNCHERS.values() for name in settings(cls)}
    keys |= {name: f"hydra.sweeper.{name}" for name in settings(SearchSettings)}
    keys |= {name: f"callbacks.{name}" for name in known_callbacks()}
    for section in ("model", "run", "data", "aug", "fit"):  # if sections share a name, the last section wins
        keys |= _keys_of(section)
    return keys


def _callback_keys() -> dict[str, str]:
    """Return the key paths of the settings of callbacks, by name."""
    callbacks = reversed([*known_callbacks().items()])  # such as `monitor` of checkpoint, not of early_stopping
    return {name: f"callbacks.{key}.{name}" for key, cls in callbacks for name in settings(cls)}


def _keys_of(section: str) -> dict[str, str]:
    """Return the key paths of a section, for all sources or models, by name and by alias."""
    kinds: dict[str, Iterable[type]] = {"data": SOURCES.values(), "model": MODELS.values()}
    return keys_of(section, kinds.get(section) or [{"fit": Fit, "aug": Aug, "run": RunLabels}[section]])


def _check_sections(given: Mapping[str, Any]) -> None:
    """Reject settings in the wrong section, and suggest the right one."""
    elsewhere = {op: f"aug.train.{op}" for op in OPS} | inner_keys() | {key: key for key in TOP}
    of_callbacks = {*_callback_keys().values()}
    for section in ("data", "model", "fit"):
        values, known = given.get(section), _keys_of(section)
        for name in values if isinstance(values, Mapping) else ():
            if name in known or name not in elsewhere:
                continue
            # In `data` and `model`, such as model.layers, hardly anyone means the setting of a callback.
            if section == "fit" or elsewhere[name] not in of_callbacks:
                raise UserError(f"{section}.{name}: unknown key. Did you mean '{elsewhere[name]}'?")


def new_folder(kind: str = "") -> Path:
    """Return the path of a new folder in outputs/, without creating it. Its name ends with `kind`."""
    now = datetime.now()
    # Two runs that start in the same second must not share a folder.
    return Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-{uuid4().hex[:6]}{kind}"


def config_text(config: Config) -> str:
    return OmegaConf.to_yaml(as_written(config.resolved))


def load_config(folder: Path, name: str = CONFIG_FILE) -> dict[str, Any]:
    """Read the configuration in a run's folder.

    Interpolations stay text. `augment.cli.trust` describes when they are resolved.

    Raises:
        UserError: the file is missing or damaged.
    """
    require_in(folder, name, allowed=ALLOWED_RUN)
    loaded = read_yaml(file := folder / name, folder=folder)
    if not isinstance(loaded, dict) or not loaded:
        raise UserError(f"{file}: not the configuration of a run. Pass the folder of a run.")
    for section, removed in _IGNORED:
        loaded[section] = {key: value for key, value in section_of(loaded, section).items() if key != removed}
    return {str(key): value for key, value in loaded.items()}


def check_same(
    section: object, saved: Mapping[str, Any], key: str, names: Iterable[str], run: str = "the resumed run"
) -> None:
    """Check that the named settings of the section `key` equal the saved ones of a run."""
    for name in names:
        param, now = settings(type(section))[name], getattr(section, name)
        was = section_of(saved, key).get(name, param.default)
        if was not in (now, as_written(now), plain_value(now)):
            had = param.show(param.parse(was, f"{key}.{name} of {run}"))
            raise UserError(f"{key}.{name}: {param.show(now)}, but {run} had {had}. Use the same value.")


def _name_of(settings: object, registry: Mapping[str, type]) -> str:
    return next(name for name, cls in registry.items() if type(settings) is cls)


def _plain(section: Any) -> dict[str, Any]:
    """Return a section as plain values that parse to the same section."""
    return {name: plain_value(getattr(section, name)) for name in settings(type(section))}


def _plain_data(data: Source) -> dict[str, Any]:
    """Return the data section as plain values.

    Settings that later versions added are left out unless they are set, so that old configurations stay equal.
    """
    added = ("test_fraction", *TEST_DATA, *PIXEL_SETTINGS)
    plain = {name: value for name, value in _plain(data).items() if value is not None or name not in added}
    return {"source": _name_of(data, SOURCES), **plain}


def run_name(labels: RunLabels, folder: Path, varied: Sequence[str] = ()) -> str:
    """Return the configured name of a run. Default: the overrides that its sweep varies, or its folder's name."""
    if labels.name is not None:
        return str(as_written(labels.name))
    return varied_name(varied) or folder.resolve().name


def varied_name(varied: Sequence[str]) -> str:
    """Make a name from overrides, such as "aug.train.rotate.p=0.075 seed=1"."""
    return clip(" ".join(masked(override.lstrip("+~")) for override in varied), 120)
