"""From a command line to the composed configuration: one way for every program of the project.

Overrides as people write them are turned into overrides as Hydra wants them, and checked before Hydra runs. Hydra
tells `key=value` (must exist), `+key=value` (must not) and `++key=value` apart. Whether a key exists in the composed
YAML says nothing here, where defaults live in the code; our own checks find every unknown key. So the plus signs are
taken care of: `aug.val.center_crop.scale=.9` works whether or not the YAML mentions the scale.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError

from augment.config import Aug, parse_aug
from augment.errors import UserError, first_line, suggest
from augment.experiment import EXPERIMENT, check_experiment
from augment.params import Count, Param, Texts, parse_params
from augment.registry import load_plugins

if TYPE_CHECKING:
    from augment.sources import Source

CONF = Path(__file__).resolve().parent.parent / "conf"

# Where else a name may come from that is no file of a group.
_ELSEWHERE = {"model": "timm model.name={} if it is one of timm's."}

SECTIONS = ("data", "model", "aug", "fit", "callbacks")

# The keys outside of the sections.
TOP: dict[str, Param[Any]] = {
    "seed": Count(default=0, within=(0, 2**31 - 1), doc="seed of everything random"),
    "plugins": Texts(default=(), doc="Python modules that declare callbacks, models or sources of your own"),
}


# --- overrides ---

# Where a value begins, or one of several that are swept.
_HOME = re.compile(r"(?<=[=,])~/")

# What Hydra's grammar knows only in quotes though it has no meaning there, as umlauts and most signs, in a value
# without anything that has one.
_TO_QUOTE = re.compile(r"""(?=.*[^\x20-\x7e]|.*[!#&;<>^`])[^=,:()\[\]{}'"\\$]+""")


def normalize(tokens: Sequence[str]) -> list[str]:
    """Give every override the plus signs that Hydra wants; flags pass through.

    Raises:
        UserError: an override cannot be parsed.
    """
    groups, defaults = group_names(), default_groups()
    return [token if token.startswith("-") else _normalize(token, groups, defaults) for token in tokens]


def _normalize(token: str, groups: Sequence[str], defaults: Iterable[str]) -> str:
    if not _is_override(token):
        return token
    token = _readable(token)
    override = parse(token)
    bare = token.lstrip("+")
    if override.type == OverrideType.DEL or key_of(override).split(".")[0] == "hydra" or "/" in key_of(override):
        return token
    if key_of(override) in groups and not isinstance(override.value(), dict):
        return bare if key_of(override) in defaults else f"+{bare}"
    return f"++{bare}"


def _at_home(token: str) -> str:
    """Expand the ~ of a folder, which the shell leaves alone behind a key and Hydra's grammar does not know."""
    return _HOME.sub(lambda _: f"{Path.home()}/", token)


def _readable(token: str) -> str:
    """Return an override as Hydra's grammar can read it: the ~ expanded, and umlauts and the like put in quotes."""
    key, equals, value = _at_home(token).partition("=")
    return f'{key}="{value}"' if equals and _TO_QUOTE.fullmatch(value) else f"{key}{equals}{value}"


def _is_override(token: str) -> bool:
    return "=" in token or token.startswith("~")


def parse(token: str) -> Override:
    """Parse one override.

    Raises:
        UserError: its grammar is not Hydra's.
    """
    try:
        return OverridesParser.create().parse_override(_readable(token))
    except HydraException as error:
        raise UserError(
            f"{token}: cannot be read ({first_line(error)}). Allowed: key=value, where a value with any of = , : [ ] "
            "{ } ( ) in it is put in quotes, and these in quotes of the shell: 'data.root=\"a, b\"'."
        ) from error


def key_of(override: Override) -> str:
    """Return the key path or group that an override is about."""
    return override.key_or_group


def group_names() -> list[str]:
    """Return the config groups: the folders of conf/."""
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())


def default_groups() -> dict[str, str | None]:
    """Return the groups that conf/config.yaml lists, each with the file that is used if none is named, or None.

    All of them can be chosen without a plus sign, and what an experiment chooses gives way to the command line.
    """
    defaults = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert isinstance(defaults, dict)
    return {
        str(name): file for entry in defaults["defaults"] if isinstance(entry, dict) for name, file in entry.items()
    }


def check_groups(overrides: Sequence[Override]) -> None:
    """Check the names of config files, `data=folder`; Hydra must be initialized.

    Raises:
        UserError: a group has no file of that name; the message has the nearest one.
    """
    loader = GlobalHydra.instance().config_loader()
    for group, value in _chosen(overrides):
        known = loader.get_group_options(group)
        for name in value if isinstance(value, list) else [value]:
            if str(name).removesuffix(".yaml") not in known:
                hint = f" {group}={_ELSEWHERE[group].format(name)}" if group in _ELSEWHERE else ""
                raise UserError(f"{group}: unknown name '{name}'.{suggest(str(name), known)}{hint}")


def _check_added_once(overrides: Sequence[Override]) -> None:
    """Check that no group without a default is chosen twice; of the others Hydra takes the last choice."""
    added: dict[str, object] = {}
    defaults = default_groups()
    for group, value in _chosen(overrides):
        if group in added:
            raise UserError(f"{group}: chosen twice, {added[group]} and {value}. Allowed: once.")
        if defaults.get(group) is None:
            added[group] = value


def _chosen(overrides: Sequence[Override]) -> Iterator[tuple[str, object]]:
    """Yield the groups of which overrides choose a file, with its name or several names."""
    groups = group_names()
    for override in overrides:
        group = key_of(override)
        if group in groups and override.type != OverrideType.DEL and not isinstance(override.value(), dict):
            yield group, override.value()


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
            if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
                glob: Any = override.value()
                known = loader.get_group_options(key_of(override))
                if not glob.filter(known):
                    raise UserError(
                        f"{key_of(override)}: glob({', '.join(glob.include)}) matches no file. "
                        f"Allowed: {', '.join(known) or 'globs of files of conf/ only'}."
                    )
        jobs: list[list[str]] = BasicSweeper.split_arguments(overrides, None)[0]
    return jobs


# --- composing ---


def compose(arguments: Sequence[str]) -> dict[str, Any]:
    """Compose conf/config.yaml with overrides; nothing is written.

    Args:
        arguments: overrides as people write them, without flags.

    Returns:
        The whole configuration as plain values, interpolations resolved. Its sections are not checked yet.

    Raises:
        UserError: no override, a sweep, a group chosen twice, an unknown config file or an unknown top-level key.
        HydraException: an override that Hydra cannot apply.
        OmegaConfBaseException: an interpolation that cannot be resolved.
    """
    refuse_words(arguments)
    refuse_sweeps(arguments)
    (composed,) = compose_jobs([normalize(arguments)])
    check_keys(composed)
    return composed


def refuse_words(tokens: Iterable[str]) -> None:
    """Check that everything is an override: neither a flag nor the bare name of something.

    Raises:
        UserError: one is not; the message has what may be meant.
    """
    for token in tokens:
        if not _is_override(token) or token.startswith("-"):
            raise UserError(f"'{token}' is no override.{_meant(token)} Allowed: +aug=NAME, key=value, ~key.")


def refuse_sweeps(tokens: Sequence[str]) -> None:
    """Check that no override has several values.

    Raises:
        UserError: one has.
    """
    for token in tokens:
        if _is_override(token) and parse(token).is_sweep_override():
            shown = token.removeprefix("++")
            raise UserError(f"{shown}: several values make a sweep, which only `python -m trainer -m` runs.")


def _meant(token: str) -> str:
    if (Path(token) / "last.pt").is_file():
        return f" Did you mean 'fit.resume={token}'?"
    files = {file.stem: group for group in (EXPERIMENT, "aug") for file in sorted((CONF / group).glob("*.yaml"))}
    near = get_close_matches(token.removesuffix(".yaml"), files, n=1)
    return f" Did you mean '+{files[near[0]]}={near[0]}'?" if near else ""


def compose_jobs(
    jobs: Iterable[Sequence[str]], *, config_name: str = "config", config_dir: str | None = None
) -> list[dict[str, Any]]:
    """Compose several runs, each from its normalized overrides; see `compose`.

    Args:
        jobs: the overrides of each.
        config_name: file of conf/ to start from.
        config_dir: folder with more config files; the names of files are then left to Hydra.
    """
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    with _hydra():
        return [_compose(config_name, [*search, *job]) for job in jobs]


def _hydra() -> AbstractContextManager[None]:
    """Initialize Hydra with the files of conf/."""
    GlobalHydra.instance().clear()
    context: AbstractContextManager[None] = hydra.initialize_config_dir(str(CONF), version_base="1.3")
    return context


def _compose(config_name: str, tokens: list[str]) -> dict[str, Any]:
    overrides = [parse(token) for token in tokens]
    _check_added_once(overrides)
    if not any(key_of(override) == "hydra.searchpath" for override in overrides):
        check_groups(overrides)
    check_experiment(dict(_chosen(overrides)), {key_of(override) for override in overrides}, CONF)
    try:
        return plain_values(hydra.compose(config_name, tokens))
    except HydraException as error:
        _refuse_deletions(config_name, tokens, overrides)
        if not isinstance(error.__cause__, ConfigTypeError):
            raise
        key = error.__cause__.full_key
        raise UserError(
            f"{key}: a list does not merge with a mapping. Allowed: {key}=null before it, which clears what is there."
        ) from error


def _refuse_deletions(config_name: str, tokens: list[str], overrides: Sequence[Override]) -> None:
    """Check that overrides delete what is there.

    Raises:
        UserError: one does not; the message has the nearest key.
    """
    deleted = [override for override in overrides if override.type == OverrideType.DEL]
    if not deleted:
        return
    kept = [token for token, override in zip(tokens, overrides, strict=True) if override.type != OverrideType.DEL]
    composed = hydra.compose(config_name, kept)
    for override in deleted:
        section, _, name = key_of(override).rpartition(".")
        there = OmegaConf.select(composed, section) if section else composed
        if isinstance(there, DictConfig) and name not in there:
            raise UserError(f"~{key_of(override)}: there is no such key.{suggest(name, map(str, there))}")


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """Return what Hydra composed as plain values, interpolations resolved."""
    plain = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def check_keys(given: Mapping[str, Any], inner: Iterable[str] = ()) -> None:
    """Check the keys at the top of the configuration.

    Args:
        given: the configuration.
        inner: key paths below the sections, one of which may be meant where its last part alone is given.

    Raises:
        UserError: an unknown one; the message has the nearest.
    """
    known = (*TOP, *SECTIONS)
    for name in given:
        if name not in known:
            for path in inner:
                if path.split(".")[-1] == name:
                    raise UserError(f"{name}: unknown key. Did you mean '{path}'? Allowed: {', '.join(sorted(known))}.")
            raise UserError(f"{name}: unknown key.{suggest(name, known)}")


@dataclass(frozen=True)
class Recipe:
    """What the programs of this package take from a configuration.

    The sections model, fit and callbacks may be given, so that a command line of the trainer works here too; they are
    not looked at.

    Attributes:
        aug: the augmentation of both splits, plugins loaded.
        seed: of everything random.
        plugins: modules that declare sources, among others; loaded with the source.
        plain: the whole configuration as plain values.
    """

    aug: Aug
    seed: int
    plugins: tuple[str, ...]
    plain: Mapping[str, Any]

    def source(self) -> "Source":
        """Check the section `data` and return the source of pictures.

        Raises:
            UserError: an unknown source or setting, a missing one, a value that is not allowed, a bad plugin.
        """
        # Not at the top: it takes Pillow and more, which a program that reads no picture should not wait for.
        from augment.sources import parse_data

        load_plugins(self.plugins, "plugins")
        return parse_data(self.plain.get("data"))


def compose_recipe(arguments: Sequence[str]) -> Recipe:
    """Compose overrides and check what concerns augmentation; the source of pictures is checked when asked for.

    Raises:
        UserError: a mistake in the sections aug, seed or plugins, or as `compose`.
        HydraException: as `compose`.
        OmegaConfBaseException: as `compose`.
    """
    plain = compose(arguments)
    top = parse_params(TOP, {name: value for name, value in plain.items() if name in TOP}, "")
    return Recipe(parse_aug(plain.get("aug")), top["seed"], top["plugins"], plain)
