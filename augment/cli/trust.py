"""Decide which values of a run or sweep folder are used.

A folder contains a resolved configuration as data, which Hydra never reads. Hydra composes only the command line, whose
values override the folder's values. A folder may set plain values. It must not choose which code runs, or which files
are read or written. So a setting with a `reach` (see `augment.params`), a download, a tracker or an interpolation is
used only if the command line gives the same value, or with `--trust`.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from augment.cli.compose import REMOVE, TOP, compose_run, edited, edits_of, plain_values
from augment.cli.overrides import explained
from augment.cli.parser import TRUST_FLAG
from augment.params import DOWNLOADS, MATCHES, READS, SENDS, Param, parse_named, settings
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.nested import leaves, section_of, value_at
from augment.support.secrets import as_written
from augment.support.user_code import load_plugins

HOW_TO_TRUST = f"on the command line, or {TRUST_FLAG} if you trust the folder (in Python, trust=True)"

# A setting with side effects outside this process: its key, the side effect and its value.
Reaching = tuple[str, str, object]

# A value with a file pattern or a URL.
_PATTERN = re.compile(r"://|[*?\[\]{}()]")


class UntrustedError(UserError):
    """A run folder sets a value that only the command line may set."""


# The classes that each section chooses from, by name. The trainer adds its own. Sources are slow to import.
KINDS: dict[str, Callable[[], Mapping[str, type]]] = {
    "data": lambda: import_module("augment.data.sources").SOURCES,
    "model": dict,
    "callbacks": dict,
}

# The sections with fixed settings. The trainer adds its own.
SETTINGS: dict[str, type] = {"aug": Aug}

# The setting that chooses the dataclass of a section.
_SELECTORS = {"data": "source", "model": "kind"}


@dataclass(frozen=True)
class Saved:
    """The resolved configuration in a file of a run or sweep folder, which may come from a stranger."""

    values: Mapping[str, Any]
    where: Path  # the file
    trust: bool = False  # whether the file may set everything
    data: bool = True  # whether its images will be loaded
    starts: bool = True  # whether its model will start from the configured weights

    def with_overrides(self, tokens: Sequence[str] | None = None, config_name: str = "config") -> dict[str, Any]:
        """Return the configuration as plain values, overridden by the normalized overrides of the command line.

        If `tokens` is None, the command line takes no overrides, so errors only suggest `--trust`.

        Raises:
            UntrustedError: the folder sets a value that only the command line may set.
        """
        edits = edits_of(tokens, config_name) if tokens else []
        config = edited(self.values, edits)
        given = edited({}, (edit for edit in edits if edit.how != REMOVE))
        with explained():
            if not self.trust:
                self._check_interpolations(config, given, fixed=tokens is None)
            plain = plain_values(OmegaConf.create(config))
            if not self.trust:
                self._check_reach(plain, config, given, fixed=tokens is None)
        return plain

    def _check_interpolations(self, config: Mapping[str, Any], given: Mapping[str, Any], *, fixed: bool) -> None:
        """Reject interpolations that are not `given` on the command line."""
        for key, value in leaves(config):
            if "${" in f"{key} {value}" and value_at(given, key) != value:
                raise UntrustedError(
                    f"{key}: {value} in {self.where} is not resolved, because a run folder may come from a stranger. "
                    f"{_remedy(f'{key}=VALUE', fixed=fixed)}"
                )

    def _check_reach(
        self, plain: Mapping[str, Any], config: Mapping[str, Any], given: Mapping[str, Any], *, fixed: bool
    ) -> None:
        """Check that the command line repeats each setting with side effects outside this process."""
        rejected: dict[str, tuple[str, str]] = {}  # the value as text, and the side effect, by key
        for key, reach, value in self._reaching(plain, rejected):
            repeated = value_at(given, key)
            if repeated is not None and (value == {} or repeated == value_at(config, key)):
                continue
            shown = value
            if isinstance(value, list | dict):
                shown = yaml.safe_dump(value, default_flow_style=True, width=999).strip()
            rejected[key] = str(shown), reach
        if rejected:
            listed = ", ".join(f"{key}: {shown}" for key, (shown, _) in rejected.items())
            reaches = " or ".join(dict.fromkeys(reach for _, reach in rejected.values()))
            tokens = " ".join(shlex.quote(f"{key}={shown}") for key, (shown, _) in rejected.items())
            raise UntrustedError(
                f"{listed} in {self.where} {'is' if len(rejected) == 1 else 'are'} not used, because a run folder must "
                f"not decide {reaches}. {_remedy(tokens, fixed=fixed)}"
            )

    def _reaching(self, config: Mapping[str, Any], rejected: Collection[str]) -> Iterator[Reaching]:
        """Yield each setting with side effects outside this process.

        The caller adds the settings that it rejects to `rejected`. From then on, nothing is imported or parsed.
        """
        yield from _reaching_settings(config, "", TOP)
        plugins = TOP["plugins"].parse(config.get("plugins") or (), "plugins")
        if not rejected:
            load_plugins(tuple(plugins or ()), "plugins")  # plugins may declare the settings below
        for section, cls in SETTINGS.items():
            yield from _reaching_settings(section_of(config, section), f"{section}.", settings(cls))
        yield from _reaching_callbacks(section_of(config, "callbacks"))
        if self.data:
            yield from _reaching_choice(config, "data", rejected)
        yield from _reaching_choice(config, "model", rejected, reads_files=self.starts)


@dataclass(frozen=True)
class Start:
    """The base of a command line's overrides: a file of `conf/`, or the configuration of a folder."""

    config_name: str = "config"
    saved: Saved | None = None

    def plain(self, tokens: Sequence[str]) -> dict[str, Any]:
        """Return the configuration with normalized overrides, as plain values."""
        if self.saved is None:
            return compose_run(tokens, config_name=self.config_name).plain
        return self.saved.with_overrides(tokens, self.config_name)

    def raw(self, tokens: Sequence[str]) -> dict[str, Any]:
        """Return the configuration with interpolations unresolved."""
        if self.saved is None:
            return compose_run(tokens, config_name=self.config_name).raw
        written: dict[str, Any] = as_written(self.plain(tokens))
        return written

    def text(self, tokens: Sequence[str]) -> str:
        """Return the result of `raw` as YAML."""
        return OmegaConf.to_yaml(self.raw(tokens))

    def hydra(self, tokens: Sequence[str]) -> DictConfig:
        """Return Hydra's own section, with interpolations unresolved. A folder's configuration has none."""
        kept = tokens if self.saved is None else [token for token in tokens if token[0] != "~"]
        return compose_run(kept, config_name=self.config_name).hydra


def _remedy(tokens: str, *, fixed: bool) -> str:
    """Return the remedy for rejected settings. `fixed` states whether the command line takes no overrides."""
    return f"Add {TRUST_FLAG} if you trust the folder." if fixed else f"Pass {tokens} {HOW_TO_TRUST}."


def _reaching_callbacks(callbacks: Mapping[str, Any]) -> Iterator[Reaching]:
    known = KINDS["callbacks"]()
    for name in [name for name in callbacks if name in known]:
        params = settings(known[name])
        if callbacks[name] is not None and SENDS in {param.reach for param in params.values()}:
            yield f"callbacks.{name}", SENDS, {}
        yield from _reaching_settings(section_of(callbacks, name), f"callbacks.{name}.", params)


def _reaching_choice(
    config: Mapping[str, Any], section: str, rejected: Collection[str], *, reads_files: bool = True
) -> Iterator[Reaching]:
    """Yield the settings of the chosen source or model. Unless it `reads_files`, skip files to read and downloads."""
    values, kinds, selector = section_of(config, section), KINDS[section](), _SELECTORS[section]
    kind = kinds.get(str(values.get(selector)))
    if kind is None:
        return
    reaching = _reaching_settings(values, f"{section}.", settings(kind))
    yield from (setting for setting in reaching if reads_files or setting[1] != READS)
    if reads_files and not rejected:
        with suppress(UserError):  # an invalid value raises an error where it is used
            chosen: Any = parse_named(kinds, values, section, selector)
            if key := chosen.downloads():
                yield f"{section}.{key}", DOWNLOADS, values.get(key)


def _reaching_settings(values: Mapping[str, Any], prefix: str, params: Mapping[str, Param[Any]]) -> Iterator[Reaching]:
    for name, param in params.items():
        value, default = values.get(name), param.default
        plain = list(default) if isinstance(default, tuple) else default
        if not param.reach or value is None or value == plain:
            continue
        if param.reach != MATCHES:
            yield prefix + name, param.reach, value
        elif _PATTERN.search(str(value)):
            yield prefix + name, DOWNLOADS if "://" in str(value) else MATCHES, value
