"""What the folder of a run or sweep may decide: values, but neither which code runs nor where files come from or go to.

Otherwise, whoever sends a folder could choose which code is imported when its run is evaluated or resumed. A setting
whose parameter has a `reach`, a download and a tracker count only if the command line asks for the same, or with
--trust.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from augment.cli.compose import TOP, compose_jobs, plain_values
from augment.cli.parser import Parser
from augment.params import DOWNLOADS, SENDS, Param, parse_named, settings
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.nested import section_of

TRUST_FLAG = "--trust"

_ALLOWED = f"on the command line, or {TRUST_FLAG} if you trust the folder and what it names"


class UntrustedError(UserError):
    """A run folder sets what only the command line may set."""


def _sources() -> Mapping[str, type]:
    from augment.data.sources import SOURCES  # slow to import

    return SOURCES


# What the sections choose from, by name; the trainer fills in its own.
KINDS: dict[str, Callable[[], Mapping[str, type]]] = {"data": _sources, "model": dict, "callbacks": dict}

# The sections in which a name is chosen by a setting.
_SELECTORS = {"data": "source", "model": "kind"}

# The folder that decides on jobs now, and what the command line alone would make of one; see `gated`.
_gate: tuple[Path, Mapping[str, Any]] | None = None


def add_trust_flag(parser: Parser) -> None:
    """Add the flag that lets a run folder decide everything."""
    doc = "let the run folder name code to import, downloads, and environment variables; only for runs of your own"
    parser.add_argument(TRUST_FLAG, action="store_true", help=doc)


def with_overrides(
    config: Mapping[str, Any], overrides: Sequence[str], where: Path, *, trust: bool, data: bool = True
) -> dict[str, Any]:
    """Return the configuration of a run folder with overrides, checked by `check_named`.

    Interpolations are resolved in overrides and, with `trust`, in the configuration, which otherwise must not have any.

    Args:
        config: the configuration as read from its file, with unresolved interpolations.
        overrides: `key=value` overrides; `data=NAME` replaces the section.
        where: the file, for messages.
        trust: whether the folder may decide everything.
        data: whether the images of the run will be loaded.

    Raises:
        UntrustedError: see `check_named`.
        OmegaConfBaseException: an interpolation cannot be resolved.
    """
    merged = dict(config)
    for override in overrides:
        if override.startswith("data="):  # another source has other settings
            merged["data"] = {"source": override.removeprefix("data=")}
    dotted = [re.sub("^data=", "data.source=", override) for override in overrides]
    given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(dotted), resolve=True)
    everything = OmegaConf.merge(merged, given)
    assert isinstance(everything, DictConfig)
    if trust:
        return plain_values(everything)
    container = OmegaConf.to_container(everything)
    assert isinstance(container, dict)
    plain = {str(key): value for key, value in container.items()}
    check_named(plain, given, where, ["data"] if data else [])
    return plain


@contextmanager
def gated(where: Path, config_name: str, *, named: bool) -> Iterator[None]:
    """Check, inside, all jobs before anything of theirs is used: a folder that may be a stranger's decides on them.

    Args:
        where: the file that does, for messages.
        config_name: file of conf/ that jobs start from.
        named: whether the command line names that file.

    Raises:
        UntrustedError: the folder names a file elsewhere.
    """
    global _gate
    if Path(config_name).name != config_name and not named:
        raise UntrustedError(
            f"config_name: {config_name} in {where} is not used, as a folder does not decide which files are read. "
            f"Allowed: --config-name {config_name} {_ALLOWED}."
        )
    _gate = where, compose_jobs([[]], config_name=config_name)[0]
    try:
        yield
    finally:
        _gate = None


def check_job(overrides: Sequence[str], config_name: str) -> None:
    """Check a job that a folder decides on, see `gated`.

    Raises:
        UntrustedError: it sets something that only the command line may set.
    """
    if _gate is not None:
        check_overrides(overrides, overrides, _gate[1], _gate[0], config_name)


def check_overrides(
    overrides: Sequence[str],
    runs: Sequence[str],
    named: Mapping[str, Any],
    where: Path,
    config_name: str,
    sections: Collection[str] = tuple(KINDS),
) -> None:
    """Check what overrides in a folder make; see `check_named`.

    Args:
        overrides: those in the folder, whose interpolations are not resolved.
        runs: the overrides that will run.
        named: what the command line alone would make.
        where: the file of the folder, for messages.
        config_name: file of conf/ to start from.
        sections: the sections to check.

    Raises:
        UntrustedError: it sets something that only the command line may set.
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        _check_texts({key: value}, where)
    (composed,) = compose_jobs([runs], config_name=config_name)
    check_named(composed, named, where, sections)


def check_named(config: Mapping[str, Any], named: Mapping[str, Any], where: Path, sections: Collection[str]) -> None:
    """Check that a folder sets nothing that only the command line may set.

    Args:
        config: the configuration.
        named: what the command line sets, in the same form.
        where: the file of the folder, for messages.
        sections: those of `KINDS` that will be used.

    Raises:
        UntrustedError: it does; the message says what the command line must name.
    """
    _check_texts({name: value for name, value in config.items() if name != "data" or "data" in sections}, where)
    for key, reach, value in _reaching(config, sections):
        theirs: Any = named
        for part in key.split("."):
            theirs = section_of({"": theirs}, "").get(part)
        if theirs != value and (value != {} or theirs is None):
            shown = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            raise UntrustedError(
                f"{key}: {shown} in {where} is not used, as a run folder does not decide {reach}. "
                f"Allowed: {key}={shown} {_ALLOWED}."
            )


def _check_texts(values: Mapping[str, Any], where: Path) -> None:
    for key, text in _texts(values, ""):
        if "${" in text:
            raise UntrustedError(
                f"{key}: {text} in {where} is not resolved, as a run folder may come from a stranger. "
                f"Allowed: {key}=VALUE {_ALLOWED}."
            )


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield all texts, keys included, each with its key path."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            path = f"{key}.{name}".lstrip(".")
            yield path, str(name)
            yield from _texts(inner, path)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)


def _reaching(config: Mapping[str, Any], sections: Collection[str]) -> Iterator[tuple[str, str, object]]:
    """Yield what reaches beyond this program: the key path of a setting, what it decides, and its value."""
    yield from _set(config, "", TOP)
    yield from _set(section_of(config, "aug"), "aug.", settings(Aug))
    for section, kinds_of in KINDS.items():
        values, kinds = section_of(config, section), kinds_of() if section in sections else {}
        if section == "callbacks":
            for name in filter(kinds.__contains__, values):
                params = settings(kinds[name])
                if values[name] is not None and SENDS in {param.reach for param in params.values()}:
                    yield f"{section}.{name}", SENDS, {}
                yield from _set(section_of(values, name), f"{section}.{name}.", params)
        elif (kind := kinds.get(str(values.get(_SELECTORS[section])))) is not None:
            yield from _set(values, f"{section}.", settings(kind))
            with suppress(UserError):  # of a value that is refused when it is used
                chosen: Any = parse_named(kinds, values, section, _SELECTORS[section])
                if key := chosen.downloads():
                    yield f"{section}.{key}", DOWNLOADS, values.get(key)


def _set(values: Mapping[str, Any], prefix: str, params: Mapping[str, Param[Any]]) -> Iterator[tuple[str, str, object]]:
    for name, param in params.items():
        value, default = values.get(name), param.default
        plain = list(default) if isinstance(default, tuple) else default
        if param.reach and value is not None and value != plain:
            yield prefix + name, param.reach, value
