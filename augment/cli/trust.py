"""What the folder of a run or sweep may decide: values, but neither which code runs nor where files come from or go to.

Otherwise, whoever sends a folder could choose which code is imported when its run is evaluated or resumed. A setting
whose parameter has a `reach`, a download and a tracker count only if the command line asks for the same, or with
--trust.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from augment.cli.compose import TOP, Composed, compose_run, plain_values
from augment.cli.overrides import explained
from augment.cli.parser import TRUST_FLAG
from augment.params import DOWNLOADS, SENDS, Param, parse_named, settings
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.nested import leaves, section_of

_ALLOWED = f"on the command line, or {TRUST_FLAG} if you trust the folder and what it names"


class UntrustedError(UserError):
    """A run folder sets what only the command line may set."""


# What the sections choose from, by name; the trainer fills in its own. The sources are slow to import.
KINDS: dict[str, Callable[[], Mapping[str, type]]] = {
    "data": lambda: import_module("augment.data.sources").SOURCES,
    "model": dict,
    "callbacks": dict,
}

# The sections in which a name is chosen by a setting.
_SELECTORS = {"data": "source", "model": "kind"}


@dataclass(frozen=True)
class Gate:
    """A file of a folder, which may be a stranger's, that decides on jobs."""

    where: Path
    named: Callable[[], Mapping[str, Any]]  # returns what the command line alone would make of a job
    sections: Collection[str] = tuple(KINDS)  # those that will be used
    every: bool = True  # whether it decides on all overrides of a job

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Check that no override has an interpolation, which would be resolved."""
        for override in overrides:
            key, _, value = override.lstrip("+").partition("=")
            self._check_texts({key: value})

    def check(self, config: Mapping[str, Any]) -> None:
        """Check that a configuration sets nothing that only the command line may set, which the message names."""
        self._check_texts({name: value for name, value in config.items() if name != "data" or "data" in self.sections})
        for key, reach, value in _reaching(config, self.sections):
            theirs: Any = self.named()
            for part in key.split("."):
                theirs = section_of({"": theirs}, "").get(part)
            if theirs != value and (value != {} or theirs is None):
                shown = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
                raise UntrustedError(
                    f"{key}: {shown} in {self.where} is not used, as a run folder does not decide {reach}. "
                    f"Allowed: {key}={shown} {_ALLOWED}."
                )

    def _check_texts(self, values: Mapping[str, Any]) -> None:
        for key, value in leaves(values):
            if "${" in f"{key} {value}":
                raise UntrustedError(
                    f"{key}: {value} in {self.where} is not resolved, as a run folder may come from a stranger. "
                    f"Allowed: {key}=VALUE {_ALLOWED}."
                )


# The one that all jobs pass now; see `gated`.
_gate: Gate | None = None


def with_overrides(
    config: Mapping[str, Any], overrides: Sequence[str], where: Path, *, trust: bool, data: bool = True
) -> dict[str, Any]:
    """Return the configuration of a run folder with overrides, checked by `Gate.check`.

    Interpolations are resolved in overrides, of which `data=NAME` replaces the section, and, with `trust`, in the
    configuration, which otherwise must not have any. The file is `where`; `data`: whether its images will be loaded.
    """
    merged = dict(config)
    for override in overrides:
        if override.startswith("data="):  # another source has other settings
            merged["data"] = {"source": override.removeprefix("data=")}
    dotted = [re.sub("^data=", "data.source=", override) for override in overrides]
    with explained():
        given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(dotted), resolve=True)
        everything = OmegaConf.merge(merged, given)
    assert isinstance(everything, DictConfig)
    if trust:
        return plain_values(everything)
    plain: Any = OmegaConf.to_container(everything)
    Gate(where, lambda: given, ["data"] if data else []).check(plain)
    return {str(key): value for key, value in plain.items()}


@contextmanager
def gated(gate: Gate) -> Iterator[None]:
    """Let all jobs that are composed inside pass a gate, before anything of theirs is used; see `compose_job`."""
    global _gate
    before, _gate = _gate, gate
    try:
        yield
    finally:
        _gate = before


def sweep_gate(where: Path, config_name: str, *, named: bool) -> Gate:
    """Return the gate for the jobs of a sweep's folder, on which the file `where` decides.

    If the file that jobs start from is not in conf/, the command line has to name it; `named`: whether it does.
    """
    if Path(config_name).name != config_name and not named:
        raise UntrustedError(
            f"config_name: {config_name} in {where} is not used, as a folder does not decide which files are read. "
            f"Allowed: --config-name {config_name} {_ALLOWED}."
        )
    return Gate(where, lambda: compose_run([], config_name=config_name).plain)


def compose_job(overrides: Sequence[str], config_name: str = "config", gate: Gate | None = None) -> Composed:
    """Compose a job as `compose_run` does; what a folder decides has to pass a gate, by default that of `gated`."""
    gate = gate or _gate
    if gate is not None and gate.every:
        gate.check_overrides(overrides)
    composed = compose_run(overrides, config_name=config_name)
    if gate is not None:
        gate.check(composed.plain)
    return composed


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
