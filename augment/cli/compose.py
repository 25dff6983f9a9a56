"""Compose the configuration from overrides, in the same way for every program."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from augment.cli.choices import check_added_once, check_groups, chosen_files, refuse_deletions, refuse_null_steps
from augment.cli.conf import CONF, check_file, config_files, register_folders
from augment.cli.experiment import check_experiment
from augment.cli.explanation import explain
from augment.cli.overrides import key_of, normalize, parse, refuse_sweeps, refuse_words
from augment.params import IMPORTS, Count, Param, Texts, check_known, parse_params, settings
from augment.recipe.op import OPS
from augment.recipe.steps import Aug, parse_aug
from augment.support.errors import UserError, first_line
from augment.support.hydra_versions import VERSION_BASE
from augment.support.own_code import load_plugins
from augment.support.secrets import resolved

if TYPE_CHECKING:
    from augment.data.sources import Source


# Hydra's name for a recipe that is not in a file of conf/aug.
_GIVEN = "given"

# Hydra's state is global: threads that compose take turns.
_COMPOSING = RLock()

SECTIONS = ("data", "model", "aug", "fit", "callbacks", "run")

# The keys outside the sections.
TOP: dict[str, Param[Any]] = {
    "seed": Count(default=0, within=(0, 2**31 - 1), doc="seed of everything random"),
    "plugins": Texts(
        default=(), doc="Python modules that declare callbacks, models, sources or tasks of your own", reach=IMPORTS
    ),
}


def split_sweep(tokens: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a sweep, in the order in which Hydra runs them.

    Args:
        tokens: normalized overrides, of which some have several values: `a,b`, `range(3)`, `glob(a*)`.

    Raises:
        UserError: an override that cannot be parsed, or a glob that no file matches.
    """
    overrides = [parse(token) for token in tokens]
    with _hydra():
        loader = GlobalHydra.instance().config_loader()
        for override in overrides:
            override.config_loader = loader  # which knows the files that a glob may mean
            if override.value_type == ValueType.INTERVAL_SWEEP:
                raise UserError(
                    f"{key_of(override)}: an interval needs a search. Allowed: hydra/sweeper=optuna as well, or a,b,c."
                )
            if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
                glob: Any = override.value()
                known = loader.get_group_options(key_of(override))
                if not glob.filter(known):
                    raise UserError(
                        f"{key_of(override)}: glob({', '.join(glob.include)}) matches no file. "
                        f"Allowed: {', '.join(known) or 'globs of files of conf/ only'}."
                    )
        jobs: list[list[str]] = BasicSweeper.split_arguments(overrides, None)[0]
    if not jobs:
        empty = ", ".join(token.removeprefix("++") for token in tokens if "range(" in token)
        raise UserError(
            f"{empty}: no values. Allowed: range(STOP) or range(START, STOP, STEP), which ends before STOP."
        )
    # Hydra adds a value to what is removed.
    return [[token.removesuffix("=null") if token[0] == "~" else token for token in job] for job in jobs]


def compose(arguments: Sequence[str], aug: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compose conf/config.yaml with overrides; nothing is written.

    Args:
        arguments: overrides as on the command line, without flags.
        aug: values of the section aug before overrides, as in a file of conf/aug.

    Returns:
        The whole configuration as plain values, interpolations resolved. Its sections are not checked yet.

    Raises:
        UserError: no override, a sweep, a group chosen twice, an unknown config file or an unknown top-level key.
        HydraException: an override that Hydra cannot apply.
        OmegaConfBaseException: an interpolation that cannot be resolved.
    """
    refuse_words(arguments)
    refuse_sweeps(arguments)
    with _stored(aug) as chosen:
        (composed,) = compose_jobs([normalize([*chosen, *arguments])])
    check_keys(composed)
    return composed


@contextmanager
def _stored(aug: Mapping[str, Any] | None) -> Iterator[list[str]]:
    """Register values as a file of conf/aug; yield the overrides that choose it."""
    if aug is None:
        yield []
        return
    store = ConfigStore.instance()
    with _COMPOSING:
        store.store(_GIVEN, OmegaConf.create({"aug": dict(aug)}).aug, group="aug")
        try:
            yield [f"+aug={_GIVEN}"]
        finally:
            del store.repo["aug"][f"{_GIVEN}.yaml"]


def read_aug(file: Path) -> dict[str, Any]:
    """Read a YAML file like those of conf/aug.

    Raises:
        UserError: it cannot be read, or holds a slip; see `check_config_file`.
    """
    with _hydra():
        given = check_file(file, "aug")
    assert isinstance(given, dict)
    return {str(key): value for key, value in given.items()}


def compose_jobs(jobs: Iterable[Sequence[str]], *, config_name: str = "config") -> list[dict[str, Any]]:
    """Compose several runs, each from its normalized overrides; see `compose`.

    Args:
        jobs: the overrides of each.
        config_name: file of conf/ to start from.
    """
    with _hydra():
        return [_compose(config_name, list(job)) for job in jobs]


def compose_hydra(tokens: Sequence[str], *, config_name: str = "config") -> DictConfig:
    """Compose a run from its normalized overrides; return Hydra's own section, interpolations unresolved."""
    with _hydra():
        check_groups([parse(token) for token in tokens])
        section: DictConfig = hydra.compose(config_name, list(tokens), return_hydra_config=True).hydra
    return section


@contextmanager
def _hydra() -> Iterator[None]:
    """Initialize Hydra with the files of conf/ and the user's own, then restore the Hydra that was running before."""
    with _COMPOSING:
        register_folders()
        running = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with hydra.initialize_config_dir(str(CONF), **VERSION_BASE):
                yield
        finally:
            GlobalHydra.instance().hydra = running


def _compose(config_name: str, tokens: list[str]) -> dict[str, Any]:
    overrides = [parse(token) for token in tokens]
    check_added_once(overrides)
    if not any(key_of(override) == "hydra.searchpath" for override in overrides):
        check_groups(overrides)
    check_experiment(dict(chosen_files(overrides)), {key_of(override) for override in overrides})
    try:
        composed = hydra.compose(config_name, tokens)
        refuse_null_steps(composed, overrides)
        return plain_values(composed)
    except HydraException as error:
        refuse_deletions(config_name, tokens, overrides)
        raise UserError(explain(error)) from error
    except RecursionError as error:
        raise UserError(
            "defaults: config files build on each other in a circle. Allowed: defaults without circles."
        ) from error


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """Return what Hydra composed as plain values, interpolations resolved; see `augment.support.secrets`."""
    try:
        plain = resolved(OmegaConf.to_container(composed, resolve=True), OmegaConf.to_container(composed))
    except InterpolationResolutionError as error:
        what, _, why = first_line(error).partition(" raised while resolving interpolation: ")
        if what == UserError.__name__:  # of a secret
            raise UserError(why) from None
        raise UserError(explain(error)) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def check_keys(given: Mapping[str, Any], inner: Mapping[str, str] = MappingProxyType({})) -> None:
    """Check the keys at the top of the configuration.

    Args:
        given: the configuration.
        inner: key paths in the sections by what is given at the top in their place.

    Raises:
        UserError: a key is unknown; the message suggests the nearest one.
    """
    known = {**TOP, **dict.fromkeys(SECTIONS)}
    if known.keys() >= given.keys():
        return
    from augment.data.sources import SOURCES  # takes a while, see `Recipe.source`

    others = keys_of("data", SOURCES.values()) | {op: f"aug.train.{op}" for op in OPS} | keys_of("aug", [Aug])
    check_known(given, known, "", {**others, "val": "aug.val", **inner, "train": "aug.train"})


def keys_of(section: str, classes: Iterable[type]) -> dict[str, str]:
    """Return the key paths of the settings that classes have in a section, by name and by alias."""
    declared = [setting for cls in classes for setting in settings(cls).items()]
    return {called: f"{section}.{name}" for name, param in declared for called in (*param.aliases, name)}


@dataclass(frozen=True)
class Recipe:
    """The parts of a configuration that `augment` uses.

    The sections model, fit, callbacks and run may be given, so that a command line of the trainer works here too; they
    are ignored.

    Attributes:
        aug: the augmentation of both splits, plugins loaded.
        seed: the seed of everything random.
        plugins: modules that declare sources, among others; loaded with the source.
        plain: the whole configuration as plain values.
    """

    aug: Aug
    seed: int
    plugins: tuple[str, ...]
    plain: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Recipe({self.plain.get('aug')})"

    def source(self, *, needs_train: bool = True) -> "Source":
        """Check the section `data` and return the source of images; see `parse_data`.

        Raises:
            UserError: an unknown source or setting, a missing one, a value that is not allowed, a bad plugin.
        """
        # Imported here, as Pillow and others are slow to import and many programs read no images.
        from augment.data.sources import parse_data

        load_plugins(self.plugins, "plugins")
        return parse_data(self.plain.get("data"), needs_train=needs_train)


def compose_recipe(arguments: Sequence[str], aug: Mapping[str, Any] | None = None) -> Recipe:
    """Compose overrides and check what concerns augmentation; the source of images is checked when asked for.

    Args:
        arguments: overrides as on the command line, without flags.
        aug: see `compose`.

    Raises:
        UserError: a mistake in the sections aug, seed or plugins; see also `compose`.
        HydraException: see `compose`.
        OmegaConfBaseException: see `compose`.
    """
    plain = compose(arguments, aug)
    top = parse_params(TOP, {name: value for name, value in plain.items() if name in TOP}, "")
    return Recipe(parse_aug(plain.get("aug")), top["seed"], top["plugins"], plain)


def with_data(recipe: Recipe, name: str | None, settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other data.

    Args:
        recipe: the recipe, whose data are kept if no name is given.
        name: name of a source, or of a file of conf/data.
        settings: settings of the source.

    Raises:
        UserError: a name that Hydra cannot read.
    """
    data = recipe.plain.get("data")
    if name is not None:
        data = compose([f"data={name}"])["data"] if name in config_files("data") else {"source": name}
    given = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
    return replace(recipe, plain={**recipe.plain, "data": {**(data or {}), **given}})
