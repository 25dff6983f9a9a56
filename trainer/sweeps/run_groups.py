"""Group runs of the same configuration, whose seeds and folds are replicates, and name what sets the groups apart."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from augment.support.formatting import list_some
from augment.support.nested import grouped, leaves, section_of
from trainer.run.config.equality import identity, identity_text
from trainer.run.folder.ownership import FAILED, FINISHED, INTERRUPTED, KILLED, PLANNED, PRUNED, RUNNING
from trainer.run.folder.reader import RunFolder
from trainer.sweeps.verdict import Difference, Metric, Replicates, resolution_of
from trainer.tasks.loss import NamedLoss
from trainer.tasks.registry import range_of, smaller_is_better, task_of
from trainer.tasks.task import Task

# Settings that repeat an experiment.
REPEATED = SEED, FOLD = "seed", "data.fold"

# Settings of the data that change the training images alone, or where files are kept.
_OF_TRAINING = {"fraction", "fold", "balance", "dir", "max_bad", "workers"}
_OF_TRAIN, _OF_VAL = ({f"{split}{of}" for of in ("", "_dir", "_options", "_targets")} for split in ("train", "val"))

# Settings that change what the loss of validation is, unless classes or labels are predicted.
OF_LOSSES = ("fit.loss", "fit.loss_options", "fit.standardize")

# What a group's basis calls the number of its validation images, if it is known.
IMAGES = "number of images"

# Sections in which another source or model has other settings, so that those which are missing say nothing more.
_OF_KINDS = ("data.", "model.")

# A name with more settings than these is cut short.
_SETTINGS = 6

_REASONS = {
    PLANNED: "not run yet",
    RUNNING: "still running",
    FAILED: "failed",
    INTERRUPTED: "interrupted",
    KILLED: "killed",
    PRUNED: "pruned by the search",
}

# The beginnings of overrides that change no result, or repeat an experiment.
_IGNORED = (*(f"{key}=" for key in REPEATED), "hydra.", "hydra/", "run.", "fit.resume=", "~run", "~hydra")

Settings = Mapping[str, str]


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in their seed and fold alone."""

    name: str  # what sets their configuration apart from others
    # The scores of their last epochs; runs of the same seed and fold count as one, with their mean
    replicates: Replicates
    metric: Metric
    runs: tuple[RunFolder, ...]  # the runs, in the order in which they were found
    # Settings that must be the same in groups that are compared, such as those of the validation images
    basis: Settings
    # The difference to a baseline; None for the baseline, and where there is nothing to compare
    difference: Difference | None = None
    verdict: str = ""  # what that means, in words; empty for the baseline


def group_runs(runs: Sequence[RunFolder]) -> tuple[list[RunGroup], list[tuple[RunFolder, str]]]:
    """Group the runs that count by their configurations; also return those that do not count, with the reasons.

    A run that a callback stopped early does not count, as its last epoch is an earlier one than that of others, unless
    all runs of the configuration ended so.
    """
    groups, left = list[list[RunFolder]](), []
    for same in same_configuration(runs):
        early, kept = all(run.summary.stopped for run in same if run.status == FINISHED), []
        for run in same:
            faults = (
                (run.status != FINISHED, _REASONS.get(run.status, run.status)),
                (run.chooses, "trials and finalists of a search, which chose by their scores"),
                (not run.config, "no configuration that can be read"),
                (run.summary.stopped and not early, "stopped early, unlike others of the same settings"),
                (not math.isfinite(run.last.get(run.score, math.nan)), f"without {run.score} in the last epoch"),
            )
            if reason := next((reason for wrong, reason in faults if wrong), ""):
                left.append((run, reason))
            else:
                kept.append(run)
        groups += [kept] if kept else []
    return [_make_group(name, same) for name, same in zip(name_groups(groups), groups, strict=True)], left


def _make_group(name: str, runs: Sequence[RunFolder]) -> RunGroup:
    key = runs[0].score
    found = grouped(((value_of(run, SEED), value_of(run, FOLD)), run.last[key]) for run in runs)
    scores = {replicate: mean(values) for replicate, values in found.items()}
    metric = Metric(key, smaller_is_better(key), range_of(key))
    if metric.share and len(set(scores.values())) == 1:
        values = (row.get(key, math.nan) for run in runs for row in (*run.rows, run.last, run.summary.best))
        metric = replace(metric, resolution=resolution_of(filter(math.isfinite, values)))
    return RunGroup(name, Replicates(scores), metric, tuple(runs), basis_of(runs[0]))


def basis_of(run: RunFolder) -> Settings:
    """Return the settings that must be the same in runs whose scores are compared."""
    section, task = section_of(run.config, "data"), task_of([run.last, run.summary.best])
    is_cut = section.get("folds") or section.get("val_fraction")  # val from train
    unused = _OF_TRAINING | (_OF_VAL if is_cut else {*_OF_TRAIN, "split_seed"})
    basis = flat({str(name): value for name, value in section.items() if name not in unused}, "data.")
    for other in ("fit.limit_batches", *of_loss(run.score, task)):
        basis[other] = value_of(run, other)
    if "standardize" in task.loss_settings and basis.get("fit.standardize") not in (None, "False"):
        # The loss is in standard deviations of the train split.
        given = {name: section[name] for name in ("fraction", *sorted(_OF_TRAIN)) if section.get(name) is not None}
        basis["fit.standardize"] = f"by {list_some(f'data.{name}={_text(value)}' for name, value in given.items())}"
    basis[IMAGES] = str(_val_images(run) or "")
    return basis


def first_difference(ours: Settings, theirs: Settings) -> tuple[str, str, str] | None:
    """Return the first setting by which two bases cannot be compared, with both values; None if they can."""
    for key in {**ours, **theirs}:
        values = [of.get(key) or "null" for of in (ours, theirs)]
        if values[0] != values[1] and not (key == IMAGES and "null" in values):
            return key, values[0], values[1]
    return None


def comparable(runs: Sequence[RunFolder]) -> list[int]:
    """Return a number for each run, which runs have in common whose scores can be compared."""
    found: list[tuple[str, Settings]] = []
    numbers = []
    for run in runs:
        score, basis = run.score, basis_of(run)
        same = (i for i, (key, of) in enumerate(found) if key == score and first_difference(basis, of) is None)
        numbers.append(next(same, len(found)))
        if numbers[-1] == len(found):
            found.append((score, basis))
    return numbers


def of_loss(key: str, task: Task[Any]) -> tuple[str, ...]:
    """Return the settings by which a score is another one, as it is a loss of another kind."""
    plain = key != "train_loss" and task.loss_type is not NamedLoss
    return OF_LOSSES if key.endswith("_loss") and not plain else ()


def same_configuration(runs: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Group runs whose scores are the same, and whose configurations are without seed and fold, in their order.

    Those that are known to have been validated on different numbers of images are apart.
    """
    groups = list[list[RunFolder]]()
    for same in grouped(((_identity(run), run.score), run) for run in runs).values():
        parts = grouped((_val_images(run), run) for run in same)
        groups += parts.values() if len(parts.keys() - {0}) > 1 else [same]
    return groups


def name_groups(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Return what sets each group apart: the overrides in which they differ, or their settings if those are fewer.

    A section that some lack is written as on the command line: `~aug.train.rotate` where it is missing, and
    `+aug.train.rotate` where it is not.
    """
    if len(groups) < 2:
        return [str(runs[0].sweep or runs[0].folder) for runs in groups]
    tokens = _differing([settings_of(runs[0]) for runs in groups])
    overrides = _differing_overrides(groups)
    distinct = all(overrides) and len({tuple(one) for one in overrides}) == len(groups)
    if distinct and (sum(map(len, overrides)) <= sum(map(len, tokens)) or not all(tokens)):
        tokens = overrides
    names = [list_some(one, _SETTINGS, " ") for one in tokens]
    # What is still alike differs in the order of steps or in what was cut.
    return [_distinct_name(name, names, runs[0].folder) for name, runs in zip(names, groups, strict=True)]


def _distinct_name(name: str, names: Sequence[str], folder: Path) -> str:
    if not name:
        return str(folder)
    return name if names.count(name) == 1 else f"{name} ({folder})"


def settings_of(run: RunFolder) -> Settings:
    """Return a run's settings by their key paths, without what repeats an experiment or changes no result."""
    if not run.config:
        return {}
    plain = {**run.config, "callbacks": identity(run.config)["callbacks"]}
    found = flat({str(name): value for name, value in plain.items() if name not in ("run", SEED)})
    return {key: value for key, value in found.items() if key not in (FOLD, "fit.resume")}


def value_of(run: RunFolder, key: str) -> str:
    """Return the value of a setting as text; empty if it is null or unknown."""
    section, _, name = key.rpartition(".")
    value = (section_of(run.config, section) if section else run.config).get(name)
    return "" if value is None else str(value)


def _val_images(run: RunFolder) -> int:
    """Return the number of validation images, which folds differ in; 0: unknown."""
    return 0 if value_of(run, "data.folds") or run.facts.images is None else run.facts.images[2]


def _identity(run: RunFolder) -> str:
    if not run.config:  # it has not begun
        return str(run.folder)
    plain = identity(run.config)
    plain.pop(SEED, None)
    plain["data"].pop("fold", None)
    return identity_text(plain)


def _differing_overrides(groups: Sequence[Sequence[RunFolder]]) -> list[list[str]]:
    """Return the overrides that all runs of a group have, but not all groups, and that may change a result."""
    shared = [set(runs[0].overrides).intersection(*(run.overrides for run in runs)) for runs in groups]
    everywhere = shared[0].intersection(*shared)
    return [
        [one for one in runs[0].overrides if one in own - everywhere and not one.startswith(_IGNORED)]
        for runs, own in zip(groups, shared, strict=True)
    ]


def _differing(groups: Sequence[Settings]) -> list[list[str]]:
    """Return the settings in which some groups differ, and the sections that only some have, for each group."""
    known = [set(chain.from_iterable(map(_paths, one))) for one in groups]
    partial = set[str]().union(*known) - known[0].intersection(*known)
    named: list[dict[str, str]] = [{} for _ in groups]
    for key in dict.fromkeys(chain.from_iterable(groups)):
        top = _highest(key, partial)
        differs = len({one[key] for one in groups if key in one}) > 1
        for one, paths, tokens in zip(groups, known, named, strict=True):
            if top and top not in paths:
                tokens[top] = f"~{top}"
            elif key in one and (differs or top == key):
                tokens[key] = f"{key}={one[key]}"
            elif top:
                tokens.setdefault(top, f"+{top}")
    return [_without_named_sections(tokens) for tokens in named]


def _highest(key: str, partial: Collection[str]) -> str:
    """Return the highest of a setting's sections, or the setting, that only some groups have; empty if all have it."""
    if key.startswith(_OF_KINDS):
        return ""
    return next((path for path in _paths(key) if path in partial), "")


def _without_named_sections(tokens: Mapping[str, str]) -> list[str]:
    """Return the tokens without the sections whose settings are named."""
    return [
        text
        for key, text in tokens.items()
        if not (text.startswith("+") and any(other.startswith(f"{key}.") for other in tokens))
    ]


def _paths(key: str) -> list[str]:
    """Return a setting and the sections above it, the highest first."""
    parts = key.rstrip(".").split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def flat(values: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return what nested mappings hold as text, by key paths; that of an empty one ends in a dot."""
    return {f"{key.rstrip('.')}." if value == {} else key: _text(value) for key, value in leaves(values, prefix)}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value == {} else json.dumps(value, default=str, separators=(",", ":"))
