"""Group runs of the same configuration, whose seeds and folds are replicates, and name each group by its settings."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from statistics import mean
from typing import Any

from augment.support.formatting import list_some
from augment.support.nested import grouped, leaves, section_of, value_at
from trainer.run.config.equality import TEST_DATA, identity, identity_text
from trainer.run.folder.reader import STRESS, RunFolder
from trainer.run.folder.summary import FAILED, FINISHED, INTERRUPTED, KILLED, PLANNED, PRUNED, RUNNING
from trainer.sweeps.verdict import Difference, Key, Metric, Replicates
from trainer.tasks.registry import loss_settings_of, range_of, smaller_is_better, task_of

# Settings whose values only repeat an experiment.
REPEATED = SEED, FOLD = "seed", "data.fold"

# Settings of the data in which compared runs may differ: they change only the training images, choose the fold, or
# concern how files are read.
_MAY_DIFFER = {"fraction", "fold", "balance", "labels", "dir", "workers"}

# Settings that name the files of a split.
_TRAIN_FILES, _VAL_FILES = (
    {f"{split}{ending}" for ending in ("", "_dir", "_options", "_targets")} for split in ("train", "val")
)

# The key of the number of validation images in a group's basis.
IMAGES = "number of images"

# The key of the corruptions of a stress test in a group's basis. Its value is a digest.
CORRUPTIONS = "corruptions"

# Sections whose keys depend on the source or model. Names do not mention that only some groups have such a key.
_KIND_SECTIONS = ("data.", "model.")

# The largest number of settings in a name.
_MAX_SETTINGS = 6

# The largest number of keys to compare. All recipes and experiments together have 342.
_MAX_KEYS = 500

_REASONS = {
    PLANNED: "not run yet",
    RUNNING: "still running",
    FAILED: "failed",
    INTERRUPTED: "interrupted",
    KILLED: "killed",
    PRUNED: "pruned by the search",
}

# Prefixes of overrides that change no result, or repeat an experiment.
_IGNORED = (*(f"{key}=" for key in REPEATED), "hydra.", "hydra/", "run.", "fit.resume=", "~run", "~hydra")

Settings = Mapping[str, str]


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in seed and fold."""

    name: str  # the settings that distinguish it from other groups
    replicates: Replicates  # scores of the last epochs. Runs of the same seed and fold count as one, with their mean
    metric: Metric
    runs: tuple[RunFolder, ...]  # in the order in which they were found
    basis: Settings  # settings that must agree in groups that are compared, such as the validation images
    difference: Difference | None = None  # from the baseline, None for the baseline and if nothing can be compared
    verdict: str = ""  # the difference in words, empty for the baseline


def group_runs(runs: Sequence[RunFolder]) -> tuple[list[RunGroup], list[tuple[RunFolder, str]]]:
    """Group eligible runs by configuration. Also return the other runs, each with the reason.

    A run that a callback stopped early counts only if all runs of its configuration stopped early. Otherwise its last
    epoch differs from the last epoch of the other runs.
    """
    groups, left = list[list[RunFolder]](), list[tuple[RunFolder, str]]()
    # The trials of a search do not count, so they do not decide which group is the first.
    for same in same_configuration(sorted(runs, key=lambda run: run.candidate)):
        all_early = all(run.summary.stopped for run in same if run.status == FINISHED)
        kept = []
        for run in same:
            if reason := _exclusion(run, all_early=all_early):
                left.append((run, reason))
            else:
                kept.append(run)
        if kept:
            groups.append(kept)
    return [_make_group(name, same) for name, same in zip(name_groups(groups), groups, strict=True)], left


def _exclusion(run: RunFolder, *, all_early: bool) -> str:
    """Return why a run does not count, or "" for a run that counts."""
    faults = (
        (run.status != FINISHED, _REASONS.get(run.status, run.status)),
        (run.candidate, "trials and finalists of a search, whose scores are too optimistic"),
        (not run.config, "unreadable configuration"),
        (run.summary.stopped and not all_early, "stopped early, unlike other runs of the same configuration"),
        (run.score == STRESS and not run.stress, "no stress test, see python -m trainer stress RUN"),
        (not math.isfinite(run.last.get(run.score, math.nan)), f"no {run.score} in the last epoch"),
    )
    return next((reason for wrong, reason in faults if wrong), "")


def _make_group(name: str, runs: Sequence[RunFolder]) -> RunGroup:
    key = runs[0].score
    metric = Metric(key, smaller_is_better(key), range_of(key))
    return RunGroup(
        name, Replicates(per_replicate((run, run.last[key]) for run in runs)), metric, tuple(runs), basis_of(runs[0])
    )


def per_replicate(scores: Iterable[tuple[RunFolder, float]]) -> dict[Key, float]:
    """Return the mean score of the runs of each seed and fold."""
    found = grouped(((value_of(run, SEED), value_of(run, FOLD)), score) for run, score in scores)
    return {key: mean(values) for key, values in found.items()}


def basis_of(run: RunFolder) -> Settings:
    """Return the settings that must agree in runs whose scores are compared."""
    section, task = section_of(run.config, "data"), task_of([run.last, run.summary.best])
    val_from_train = section.get("folds") or section.get("val_fraction")
    not_for_val = _VAL_FILES if val_from_train else {*_TRAIN_FILES, "split_seed", "test_fraction"}
    unused = {*_MAY_DIFFER, *TEST_DATA, *not_for_val}
    basis = flat({str(name): value for name, value in section.items() if name not in unused}, "data.")
    for other in ("fit.limit_batches", *loss_settings_of(run.score, task)):
        basis[other] = value_of(run, other)
    if "standardize" in task.loss_settings and basis.get("fit.standardize") not in (None, "False"):
        # The loss is in standard deviations of the training targets, so these must agree.
        names = ("fraction", "test_fraction", "labels", *sorted(_TRAIN_FILES))
        given = {name: section[name] for name in names if section.get(name) is not None}
        basis["fit.standardize"] = f"by {list_some(f'data.{name}={_text(value)}' for name, value in given.items())}"
    if run.score == STRESS:
        basis["stress test"], _, basis[CORRUPTIONS] = run.stress.get("tested", "").partition(", corruptions ")
    basis[IMAGES] = str(_val_images(run) or "")
    return basis


def first_difference(ours: Settings, theirs: Settings) -> tuple[str, str, str] | None:
    """Return the first setting in which two bases disagree, with both values. None if they can be compared."""
    for key in {**ours, **theirs}:
        our, their = ours.get(key) or "null", theirs.get(key) or "null"
        if our != their:
            return key, our, their
    return None


def comparable(runs: Sequence[RunFolder]) -> list[int]:
    """Number the runs so that runs with the same number can be compared."""
    known: dict[Any, int] = {}
    numbers = []
    for run in runs:
        basis = frozenset(item for item in basis_of(run).items() if item[1] not in ("", "null"))
        numbers.append(known.setdefault((run.score, basis), len(known)))
    return numbers


def same_configuration(runs: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Group runs with the same metric and number of validation images that differ only in seed and fold."""
    return [*grouped(((_identity(run), run.score, _val_images(run)), run) for run in runs).values()]


def name_groups(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Name each group by the overrides that distinguish it, or by its settings if those are fewer.

    Sections that only some groups have are written like overrides: `~aug.train.rotate` for groups without the section,
    and `+aug.train.rotate` for groups with it.
    """
    if len(groups) < 2:
        return [str(runs[0].sweep or runs[0].folder) for runs in groups]
    tokens = _differing_settings([settings_of(runs[0]) for runs in groups])
    overrides = _differing_overrides(groups)
    distinct = all(overrides) and len({tuple(one) for one in overrides}) == len(groups)
    if distinct and (sum(map(len, overrides)) <= sum(map(len, tokens)) or not all(tokens)):
        tokens = overrides
    # If a name is cut off, it keeps the settings that few other groups have.
    counts = Counter(chain.from_iterable(tokens))
    tokens = [sorted(one, key=counts.__getitem__) if len(one) > _MAX_SETTINGS else one for one in tokens]
    names = [list_some(one, _MAX_SETTINGS, " ") for one in tokens]
    # Groups with the same name differ in the order of steps, or in settings that `list_some` cut off.
    return [_distinct_name(name, names, runs[0].folder) for name, runs in zip(names, groups, strict=True)]


def _distinct_name(name: str, names: Sequence[str], folder: Path) -> str:
    if not name:
        return str(folder)
    return name if names.count(name) == 1 else f"{name} ({folder})"


def settings_of(run: RunFolder) -> Settings:
    """Return a run's settings by their key paths, without settings that repeat an experiment or change no result."""
    if not run.config:
        return {}
    plain = {**run.config, "callbacks": identity(run.config)["callbacks"]}
    found = flat({str(name): value for name, value in plain.items() if name not in ("run", SEED)})
    return {key: value for key, value in found.items() if key not in (FOLD, "fit.resume")}


def value_of(run: RunFolder, key: str) -> str:
    """Return the value of a setting as text, empty if it is null or unknown."""
    value = value_at(run.config, key)
    return "" if value is None else str(value)


def _val_images(run: RunFolder) -> int:
    """Return the number of validation images. 0 if it is unknown, or with folds, because folds differ in size."""
    return 0 if value_of(run, "data.folds") or run.facts.images is None else run.facts.images[2]


def _identity(run: RunFolder) -> str:
    if not run.config:  # the run has not started
        return str(run.folder)
    plain = identity(run.config)
    plain.pop(SEED, None)
    plain["data"].pop("fold", None)
    return identity_text(plain)


def _differing_overrides(groups: Sequence[Sequence[RunFolder]]) -> list[list[str]]:
    """Return the overrides that distinguish each group: all of its runs have them, and some other group lacks them.

    Overrides that change no result are left out.
    """
    shared = [set(runs[0].overrides).intersection(*(run.overrides for run in runs)) for runs in groups]
    everywhere = shared[0].intersection(*shared)
    differing = []
    for runs, common in zip(groups, shared, strict=True):
        own = common - everywhere
        differing.append([one for one in runs[0].overrides if one in own and not one.startswith(_IGNORED)])
    return differing


def _differing_settings(groups: Sequence[Settings]) -> list[list[str]]:
    """Return the settings that distinguish each group, and the sections that only some groups have."""
    known = [set(chain.from_iterable(map(_paths, settings))) for settings in groups]
    partial = set[str]().union(*known) - known[0].intersection(*known)
    named: list[dict[str, str]] = [{} for _ in groups]
    for key in islice(dict.fromkeys(chain.from_iterable(groups)), _MAX_KEYS):
        differs = len({settings[key] for settings in groups if key in settings}) > 1
        top = ""  # the highest path to this setting that only some groups have
        if not key.startswith(_KIND_SECTIONS):
            top = next((path for path in _paths(key) if path in partial), "")
        for settings, paths, tokens in zip(groups, known, named, strict=True):
            if top and top not in paths:
                tokens[top] = f"~{top}"
            elif key in settings and (differs or top == key):
                tokens[key] = f"{key}={settings[key]}"
            elif top:
                tokens.setdefault(top, f"+{top}")
    return [_without_named_sections(tokens) for tokens in named]


def _without_named_sections(tokens: Mapping[str, str]) -> list[str]:
    """Return the tokens without sections whose settings are also named."""
    return [
        text
        for key, text in tokens.items()
        if not (text.startswith("+") and any(other.startswith(f"{key}.") for other in tokens))
    ]


def _paths(key: str) -> list[str]:
    """Return the key paths of the sections above a setting, the highest first, and then its own path."""
    parts = key.rstrip(".").split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def flat(values: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return the values in nested mappings as text, by key paths. The key of an empty mapping ends in a dot."""
    return {f"{key.rstrip('.')}." if value == {} else key: _text(value) for key, value in leaves(values, prefix)}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value == {} else json.dumps(value, default=str, separators=(",", ":"))
