"""The settings in which runs differ, their importance, and groups of runs that repeat each other."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import pvariance, quantiles
from typing import Any

from augment.support.formatting import amount, clip
from augment.support.nested import grouped
from trainer.run.folder.reader import RunFolder
from trainer.sweeps.run_groups import FOLD, REPEATED, SEED, flat, name_groups, same_configuration, value_of

MOST_SETTINGS = 300
KEY, VALUE = 120, 200  # characters

FEWEST = 6  # jobs that the importance of settings needs
_LEVELS = 8  # numbers with more distinct values than this are put into bins

_NOTE = (
    "Share of the last score's variance that a setting explains on its own (epsilon squared), over {}. A setting "
    "without effect has a share of about 0. Effects of combinations are not included. If settings were varied "
    "together, each of them also shows the effect of the others. Numbers with many values are put into four bins."
)
# Settings that do not describe an experiment.
_OF_FOLDERS = ("run.", "fit.resume", "data.dir", "hydra")

Value = str | int | float | None


class Settings:
    """The settings of some runs: values of their configurations, and choices by name such as aug=NAME."""

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        self._overrides = [_split(run.overrides) for run in runs]
        self._configs = [_values(run.config) for run in runs]
        # The keys that any of the command lines set
        self.given = {key for overrides in self._overrides for key in overrides}
        known = {key for config in self._configs for key in config}
        columns: defaultdict[str, dict[int, Value]] = defaultdict(dict)
        for i, (overrides, config) in enumerate(zip(self._overrides, self._configs, strict=True)):
            # A job that has not started has no configuration yet. A number may have been given for a range.
            chosen = {
                key: value
                for key, value in overrides.items()
                if not config or key not in known or isinstance(value, int | float)
            }
            for key, value in (config | chosen).items():
                columns[key][i] = value
        # A job that has not started lacks keys, which does not count as a difference.
        begun = [i for i, config in enumerate(self._configs) if config] or range(len(runs))
        differing = [key for key, column in columns.items() if _differs(column, begun)]
        differing.sort(key=lambda key: (key not in self.given, -len(columns[key])))
        # For each key that differs, the values by position of the run. Runs without the key are left out
        self.columns = {key: columns[key] for key in differing[:MOST_SETTINGS]}

    def recipe(self, i: int) -> tuple[tuple[str, Value], ...]:
        """Return the settings of a run's data and augmentation."""
        found = self._configs[i].items()
        return tuple((k, v) for k, v in found if k.startswith(("aug.", "data.")) and k not in REPEATED)

    def jobs(self, positions: Sequence[int]) -> dict[str, list[Value]]:
        """Return the values of each key that differs among some runs and that any of their command lines set.

        Seeds and folds are left out.
        """
        given = {key for i in positions for key in self._overrides[i]}.difference(REPEATED)
        values = {key: [column.get(i) for i in positions] for key, column in self.columns.items() if key in given}
        return {key: column for key, column in values.items() if len(set(column)) > 1}

    def plain(self) -> list[dict[str, Any]]:
        """Return each column as its distinct values, and the position of each run's value. -1: the run has no value."""
        encoded = []
        for key, column in self.columns.items():
            values = {value: i for i, value in enumerate(dict.fromkeys(column.values()))}
            codes = [values[column[i]] if i in column else -1 for i in range(len(self._configs))]
            encoded.append({"key": key, "values": list(values), "codes": codes, "given": key in self.given})
        return encoded


def _differs(column: Mapping[int, Value], begun: Iterable[int]) -> bool:
    """Return whether runs have different values, or whether a run that has started lacks the key."""
    return len({*column.values()}) > 1 or any(i not in column for i in begun)


def importance(settings: Mapping[str, Sequence[object]], scores: Sequence[float]) -> dict[str, Any] | None:
    """Return the importance of each setting, the greatest first, and an explanation. None for too few jobs."""
    if len(scores) < FEWEST or len(set(scores)) < 2:
        return None
    shares = {key: _explained(values, scores) for key, values in settings.items()}
    rows = [[key, round(share, 4)] for key, share in sorted(shares.items(), key=lambda row: -row[1])]
    return {"rows": rows, "note": _NOTE.format(amount(len(scores), "finished job"))} if rows else None


def _explained(values: Sequence[object], scores: Sequence[float]) -> float:
    """Return epsilon squared: the share of the variance that a setting explains, corrected for chance."""
    levels, numbers = values, [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values) and len(set(numbers)) > _LEVELS:
        cuts = quantiles(numbers, n=4)
        levels = [sum(number > cut for cut in cuts) for number in numbers]
    of_level = grouped(zip(levels, scores, strict=True))
    total = len(scores) * pvariance(scores)
    within = math.fsum(len(group) * pvariance(group) for group in of_level.values())
    free = len(scores) - len(of_level)
    if free < 1:  # each job has its own value, which explains nothing
        return 0.0
    return max(0.0, 1 - within / free * (len(scores) - 1) / total) if total else 0.0


def groups(runs: Sequence[RunFolder]) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the names of groups of runs that repeat each other, and the group and replicate of each run.

    The replicate is the run's seed, or its fold if the group has several folds, as in verdicts. Runs of different
    sweeps are never in one group.
    """
    # Jobs that have not started have only overrides, so they cannot be grouped with others.
    of_sweep = grouped(((run.sweep, bool(run.config)), run) for run in runs)
    names: list[tuple[str, Path | None]] = []
    found: dict[Path, tuple[int, str]] = {}
    for (sweep, _), members in of_sweep.items():
        same = same_configuration(members)
        own = name_groups(same) if len(same) > 1 else [group[0].name for group in same]
        for name, group in zip(own, same, strict=True):
            key = FOLD if len({value_of(run, FOLD) for run in group}) > 1 else SEED
            found |= {run.folder: (len(names), clip(value_of(run, key), KEY)) for run in group}
            names.append((clip(name, VALUE), sweep))
    # A name is unique only within its sweep.
    count = Counter(name for name, _ in names)
    unique = [f"{name} ({clip(sweep.name, KEY)})" if sweep and count[name] > 1 else name for name, sweep in names]
    return unique, [found[run.folder] for run in runs]


def _values(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return the values of a configuration by their key paths. An op is left out if its step has the same name."""
    return {
        clip(key, KEY): _scalar(text)
        for key, text in flat(config).items()
        if not key.startswith(_OF_FOLDERS) and not key.endswith(f".{text}.op")
    }


def _split(overrides: Iterable[str]) -> dict[str, Value]:
    """Return the values of overrides by their keys."""
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    return {clip(key, KEY): _scalar(value) for key, _, value in pairs if not key.startswith(_OF_FOLDERS)}


def _scalar(text: str) -> Value:
    """Parse a value as a number or null. Other values stay strings, shortened if they are long.

    Whole numbers in lists lose their decimal point.
    """
    for kind in (int, float):
        with suppress(ValueError):
            value = kind(text)
            if abs(value) < 2**53:
                return value
    if text.startswith("["):
        text = re.sub(r"(?<=[\[,])(-?\d+)\.0(?=[,\]])", r"\1", text)
    return None if text == "null" else clip(text, VALUE)
