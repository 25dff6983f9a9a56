"""What a run folder may decide: values, but neither which code runs nor where files come from or go to.

Otherwise, whoever sends a run folder could choose which code is imported when it is evaluated or resumed. A setting
whose parameter has a `reach` counts only if the command line names it, or with --trust.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from augment.cli.compose import TOP, plain_values
from augment.cli.parser import Parser
from augment.params import Param, settings
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.nested import section_of

TRUST_FLAG = "--trust"


class UntrustedError(UserError):
    """A run folder sets what only the command line may set."""


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
    dotted = [override for override in overrides if not override.startswith("data=")]
    given = OmegaConf.to_container(OmegaConf.from_dotlist(dotted), resolve=True)
    everything = OmegaConf.merge(merged, given)
    assert isinstance(everything, DictConfig)
    if trust:
        return plain_values(everything)
    container = OmegaConf.to_container(everything)
    assert isinstance(container, dict)
    plain = {str(key): value for key, value in container.items()}
    check_named(plain, {override.partition("=")[0] for override in overrides}, where, data=data)
    return plain


def check_named(
    config: Mapping[str, Any],
    named: Collection[str],
    where: Path,
    *,
    data: bool = True,
    callbacks: Mapping[str, type] | None = None,
) -> None:
    """Check that a run folder sets nothing that only the command line may set.

    Args:
        config: the composed configuration.
        named: the keys that the command line sets.
        where: the file of the folder, for messages.
        data: whether the section `data` is checked, too.
        callbacks: callbacks by name, if they are checked, too.

    Raises:
        UntrustedError: it does; the message says what the command line must name.
    """
    allowed = f"on the command line, or {TRUST_FLAG} if you trust the folder and what it names"
    checked = config if data else {key: value for key, value in config.items() if key != "data"}
    for key, text in _texts(checked, ""):
        if "${" in text:
            raise UntrustedError(
                f"{key}: {text} in {where} is not resolved, as a run folder may come from a stranger. "
                f"Allowed: {key}=VALUE {allowed}."
            )
    for key, param, value in _reaching(checked, callbacks or {}):
        if key not in named and value is not None and _listed(value) != _listed(param.default):
            shown = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            raise UntrustedError(
                f"{key}: {shown} in {where} is not used, as a run folder does not decide {param.reach}. "
                f"Allowed: {key}={shown} {allowed}."
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


def _reaching(config: Mapping[str, Any], callbacks: Mapping[str, type]) -> Iterator[tuple[str, Param[Any], object]]:
    """Yield the settings whose parameters have a reach: key path, parameter and value."""
    from augment.data.sources import SOURCES  # slow to import

    sections = {"": TOP, "aug.": settings(Aug)}
    source = section_of(config, "data").get("source")
    if isinstance(source, str) and source in SOURCES:
        sections["data."] = settings(SOURCES[source])
    chosen = section_of(config, "callbacks")
    sections |= {f"callbacks.{name}.": settings(cls) for name, cls in callbacks.items() if name in chosen}
    for prefix, params in sections.items():
        values = config
        for part in prefix.split(".")[:-1]:
            values = section_of(values, part)
        yield from ((prefix + n, p, values[n]) for n, p in params.items() if p.reach and n in values)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
