"""Compose the configuration of every program from overrides."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from augment.cli.config_files import CONF, EXPERIMENT, config_files, default_groups, group_names, register_folders
from augment.cli.overrides import explained, key_of, normalize, parse, reject_sweeps, reject_words
from augment.params import IMPORTS, Count, Param, Texts, check_known, parse_params, settings
from augment.recipe.op import OPS
from augment.recipe.plan import build_plan
from augment.recipe.steps import SPLITS, Aug, parse_aug
from augment.support.errors import UserError, suggest
from augment.support.hydra import VERSION_BASE, register_resolver
from augment.support.nested import leaves, merged, section_of, value_at
from augment.support.secrets import resolved
from augment.support.user_code import load_plugins

if TYPE_CHECKING:
    from augment.data.sources import Source


# Hydra's name for a recipe that is given as a mapping, not as a file of conf/aug.
_GIVEN = "given"

# The ways in which an edit changes a configuration.
MERGE, REPLACE, REMOVE = "merge", "replace", "remove"

# A chosen file replaces these sections completely.
_REPLACED_SECTIONS = ("aug", "data", "model")

# Hydra has global state, so only one thread composes at a time.
_COMPOSING = RLock()

# The top-level keys that are not sections.
TOP: dict[str, Param[Any]] = {
    "seed": Count(default=0, within=(0, 2**31 - 1), doc="random seed"),
    "plugins": Texts(
        default=(),
        doc="your Python modules that declare callbacks, models, sources or tasks. For ops: aug.plugins",
        reach=IMPORTS,
    ),
}

# Two runs that start in the same second get different folders. See conf/config.yaml.
register_resolver("run_suffix", lambda: uuid4().hex[:6], use_cache=True, replace=True)


class Composed:
    """The configuration that Hydra composed from the overrides of one run."""

    def __init__(self, tree: DictConfig) -> None:
        self.hydra: DictConfig = tree.hydra  # Hydra's own section, interpolations unresolved
        self._own = OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"])

    @cached_property
    def plain(self) -> dict[str, Any]:
        """All sections and top-level keys as plain values, with interpolations resolved. They are not checked yet."""
        return plain_values(self._own)

    @property
    def raw(self) -> dict[str, Any]:
        """The same values with interpolations unresolved."""
        raw: Any = OmegaConf.to_container(self._own)
        return {str(key): value for key, value in raw.items()}


def compose_run(tokens: Sequence[str], *, config_name: str = "config") -> Composed:
    """Compose a run from a file of conf/ and normalized overrides, each with one value."""
    _check_choices(tokens)
    with _hydra():
        try:
            return Composed(hydra.compose(config_name, list(tokens), return_hydra_config=True))
        except ConfigCompositionException as error:
            missing = re.match(r"Could not delete from config. '(.*?)' does not exist", str(error))
            if missing is None:
                raise
            section, _, name = missing[1].rpartition(".")
            config = hydra.compose(config_name, [token for token in tokens if token[0] != "~"])
            siblings = OmegaConf.select(config, section) if section else config
            why = "nothing to remove. Use a key that a file in conf/ sets."
            if isinstance(siblings, DictConfig) and siblings:
                why = f"this key does not exist.{suggest(name, map(str, siblings))}"
            raise UserError(f"~{missing[1]}: {why}") from error


@dataclass(frozen=True)
class Edit:
    """A change of one key of a configuration."""

    key: str  # key path
    value: Any = None  # with interpolations unresolved
    how: str = MERGE


def edits_of(tokens: Sequence[str], config_name: str = "config") -> list[Edit]:
    """Return the changes that normalized overrides, each with one value, make to a saved configuration.

    Hydra composes only these overrides, without the saved configuration. Hydra's own keys change nothing.
    """
    reject_sweeps(tokens)
    hydra_tokens = [token for token in tokens if key_of(parse(token)).startswith("hydra")]  # such as its search path
    overrides = [(token, parse(token)) for token in tokens if token not in hydra_tokens]

    def composed(tokens: Iterable[str]) -> dict[str, Any]:
        return compose_run([*hydra_tokens, *tokens], config_name=config_name).raw

    groups = group_names()
    kept = [(token, override) for token, override in overrides if not override.is_delete()]
    values = composed(token for token, _ in kept) if kept else {}
    files = {t: key_of(o) for t, o in kept if key_of(o) in groups and not isinstance(o.value(), dict)}
    edits = _edits_of_files(set(files.values()), composed(()), composed(files)) if files else []
    for token, override in overrides:
        key = key_of(override)
        if override.is_delete():
            edits.append(Edit(key, how=REMOVE))
        elif token not in files:
            edits.append(Edit(key, value_at(values, key)))
    return edits


def _edits_of_files(groups: Collection[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Edit]:
    """Return the changes that the chosen files of some groups make.

    A file replaces the section `aug`, `data` or `model`. Files of other groups replace only the values that differ from
    the defaults. An experiment, which has no section of its own, sets any section without a chosen file.

    Args:
        groups: the groups whose files are chosen.
        before: the default configuration.
        after: the configuration with the chosen files.
    """
    edits: list[Edit] = []
    for group in sorted(groups, key=lambda group: group in after):  # experiments first
        has_section = group in after or group in _REPLACED_SECTIONS
        for section in [group] if has_section else [name for name in after if name not in groups]:
            value = after.get(section)
            if section not in _REPLACED_SECTIONS:
                values = leaves({section: value})
                edits += [Edit(key, inner) for key, inner in values if inner != value_at(before, key)]
            elif section == group or value != before.get(section):
                edits.append(Edit(section, value, REPLACE))
    return edits


def edited(values: Mapping[str, Any], edits: Iterable[Edit]) -> dict[str, Any]:
    """Return a configuration with changes. Removing a missing key raises a UserError."""
    result = dict(values)
    for edit in edits:
        *above, name = edit.key.split(".")
        inside = result
        for part in above:
            inside[part] = dict(section_of(inside, part))
            inside = inside[part]
        if edit.how == REMOVE and name not in inside:
            raise UserError(f"~{edit.key}: this key does not exist.{suggest(name, map(str, inside))}")
        if edit.how == REMOVE:
            del inside[name]
        else:
            inside[name] = merged(inside.get(name), edit.value) if edit.how == MERGE else edit.value
    return result


def _check_choices(tokens: Sequence[str]) -> None:
    """Reject steps set to null, and two files of a group that has no default. Hydra would accept both."""
    groups, chosen = default_groups(), dict[str, object]()
    for override in map(parse, tokens):
        key, value = key_of(override), override.value()
        if override.is_delete() or isinstance(value, dict):
            continue
        if key in chosen and groups[key] is None:
            raise UserError(f"{key} is chosen twice: {chosen[key]} and {value}. Remove one of them.")
        if key in groups:
            chosen[key] = value
        if value is None and re.fullmatch(r"aug\.(train|val)\.[^.]+", key):  # files may have steps without parameters
            raise UserError(f"{key}: null is not allowed. Set parameters, such as {{p: 0}}, or remove it with ~{key}.")


def compose(arguments: Sequence[str], aug: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compose `conf/config.yaml` with overrides, as on the command line without flags. Nothing is written.

    Args:
        arguments: the overrides.
        aug: the section `aug` before overrides, as in a file of `conf/aug`.

    Returns:
        The configuration as plain values, with interpolations resolved. Its sections are not checked yet.
    """
    reject_words(arguments)
    reject_sweeps(arguments)
    with _COMPOSING, explained():
        if aug is not None:
            arguments = [f"+aug={_GIVEN}", *arguments]
            ConfigStore.instance().store(_GIVEN, OmegaConf.create({"aug": dict(aug)}).aug, group="aug")
        plain = compose_run(normalize(arguments)).plain
    check_keys(plain)
    return plain


@contextmanager
def _hydra() -> Iterator[None]:
    """Initialize Hydra with the config folders. At the end, restore the previous state of Hydra."""
    with _COMPOSING, explained():
        register_folders()
        running = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with hydra.initialize_config_dir(str(CONF), **VERSION_BASE):
                yield
        finally:
            GlobalHydra.instance().hydra = running


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, with interpolations resolved. See `augment.support.secrets`."""
    raw: Any = OmegaConf.to_container(composed)
    with explained(raw):
        plain: Any = resolved(OmegaConf.to_container(composed, resolve=True), raw)
    return {str(key): value for key, value in plain.items()}


def check_keys(given: Mapping[str, Any], inner: Mapping[str, str] = MappingProxyType({})) -> None:
    """Check the top-level keys of the configuration. The error about an unknown key suggests a known one.

    `inner` maps keys that users often write at the top level to the correct key paths.
    """
    known = {**TOP, **dict.fromkeys(("data", "model", "aug", "fit", "callbacks", "run"))}
    if known.keys() >= given.keys():
        return
    if isinstance(given.get(EXPERIMENT), Mapping):
        raise UserError(
            f"{EXPERIMENT}: the file needs the first line `# @package _global_`, because it sets keys of all sections. "
            "Add that line."
        )
    from augment.data.sources import SOURCES  # a slow import, see `Recipe.source`

    others = keys_of("data", SOURCES.values()) | {op: f"aug.train.{op}" for op in OPS} | keys_of("aug", [Aug])
    check_known(given, known, "", {**others, "val": "aug.val", **inner, "train": "aug.train"})


def keys_of(section: str, classes: Iterable[type]) -> dict[str, str]:
    """Map the names and aliases of settings to their key paths in a section."""
    declared = [setting for cls in classes for setting in settings(cls).items()]
    return {called: f"{section}.{name}" for name, param in declared for called in (*param.aliases, name)}


@dataclass(frozen=True)
class Recipe:
    """The parts of a configuration that `augment` uses.

    Any command line of the trainer composes a configuration that contains these parts.

    Attributes:
        aug: the augmentation of both splits, with its plugins loaded.
        seed: the random seed.
        plugins: your modules, which may declare ops and sources. They are imported.
        plain: the whole configuration as plain values.
    """

    aug: Aug
    seed: int
    plugins: tuple[str, ...]
    plain: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Recipe({self.plain.get('aug')})"

    def _repr_html_(self) -> str:
        """Show the steps of both splits in notebooks."""
        return "".join(build_plan(self.aug, split)._repr_html_() for split in SPLITS)

    def source(self) -> "Source":
        """Check the section `data` and return the source of images. See `parse_data`.

        Raises:
            UserError: a source, a setting, a value or a plugin is invalid or missing.
        """
        # Many programs read no images, and Pillow is slow to import.
        from augment.data.sources import parse_data

        load_plugins(self.plugins, "plugins")
        return parse_data(self.plain.get("data"))


def compose_recipe(arguments: Sequence[str], aug: Mapping[str, Any] | None = None) -> Recipe:
    """Compose overrides as `compose` does, and check the recipe, but not the source."""
    plain = compose(arguments, aug)
    top = parse_params(TOP, {name: value for name, value in plain.items() if name in TOP}, "")
    load_plugins(top["plugins"], "plugins")  # they may declare ops
    return Recipe(parse_aug(plain.get("aug")), top["seed"], top["plugins"], plain)


def with_data(recipe: Recipe, name: str | None, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other data: a source or a file of `conf/data`, and settings.

    Without a name, keep the source.
    """
    if name is None:
        data = recipe.plain.get("data") or {}
    elif name in config_files("data"):
        data = compose([f"data={name}"])["data"] or {}
    else:
        data = {"source": name}
    given = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
    return replace(recipe, plain={**recipe.plain, "data": {**data, **given}})
