"""Group runs of the same configuration, whose seeds and folds are replicates, and name what sets the groups apart."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from augment.support.nested import leaves, section_of
from augment.support.text import list_some
from trainer.run.identity import identity, identity_text
from trainer.run.summary import KILLED, RUNNING
from trainer.sweeps.runs import FAILED, FINISHED, INTERRUPTED, PLANNED, PRUNED, Run
from trainer.sweeps.verdict import Key, Metric, Replicates, resolution_of
from trainer.tasks.registry import range_of, smaller_is_better, task_of

# Settings that repeat an experiment, and their names in the plural.
SEED, FOLD = "seed", "data.fold"
REPEATED = {SEED: "seeds", FOLD: "folds"}

# Settings of the data that change the training images alone, or where files are kept.
_OF_TRAINING = {"fraction", "fold", "balance", "dir", "max_bad", "workers"}
_OF_TRAIN, _OF_VAL = ({f"{split}{of}" for of in ("", "_dir", "_options", "_targets")} for split in ("train", "val"))

# Settings that change what the loss of numbers is.
OF_LOSSES = ("fit.regression_loss", "fit.standardize")

# Settings that decide which others their section has.
_KINDS = {"data": "data.source", "model": "model.kind"}

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

_CHOSEN = "trials and finalists of a search, which chose by their scores"

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed and fold alone.

    Attributes:
        replicates: the scores of their last epochs; runs of the same seed and fold count as one, with their mean.
        metric: what the scores are.
        runs: the runs, in the order in which they were found.
        basis: settings that must be the same in groups that are compared, such as those of the validation images.
    """

    replicates: Replicates
    metric: Metric
    runs: tuple[Run, ...]
    basis: Settings

    @property
    def name(self) -> str:
        """What sets its configuration apart from those of other groups."""
        return self.replicates.name

    @property
    def mean(self) -> float:
        """The mean of the scores."""
        return self.replicates.mean

    @property
    def called(self) -> str:
        """The name for a sentence."""
        return self.name or "(no overrides)"


def make_group(name: str, runs: Sequence[Run], key: str) -> Group:
    """Return a group of runs, all of which count, see `counted`.

    Args:
        name: what sets the group apart.
        runs: the runs.
        key: the score.
    """
    found: defaultdict[Key, list[float]] = defaultdict(list)
    for run in runs:
        found[value_of(run, SEED), value_of(run, FOLD)].append(run.last[key])
    scores = {replicate: mean(values) for replicate, values in found.items()}
    metric = Metric(key, smaller_is_better(key), range_of(key))
    if metric.share and len(set(scores.values())) == 1:
        values = (row.get(key, math.nan) for run in runs for row in (*run.rows, run.last, run.best))
        metric = replace(metric, resolution=resolution_of(filter(math.isfinite, values)))
    section = section_of(runs[0].config, "data")
    is_cut = section.get("folds") or section.get("val_fraction")  # val from train
    unused = _OF_TRAINING | (_OF_VAL if is_cut else {*_OF_TRAIN, "split_seed"})
    data = {str(name): value for name, value in section.items() if name not in unused}
    others = ("fit.limit_batches", *(OF_LOSSES if key.endswith("_loss") else ()))
    basis = flat(data, "data.")
    return Group(
        Replicates(name, scores), metric, tuple(runs), basis | {other: value_of(runs[0], other) for other in others}
    )


def without_chosen(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Return the runs without those that a search chose by, and those that did not count, with the reasons."""
    left = [(run, _REASONS[run.status] if run.status != FINISHED else _CHOSEN) for run in runs if run.chooses]
    return [run for run in runs if not run.chooses], left


def counted(runs: Sequence[Run], keys: Sequence[str]) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Return which runs of a configuration count, and which do not, with the reasons.

    A run that a callback stopped early does not count, as its last epoch is an earlier one than that of others, unless
    all runs of the configuration ended so.

    Args:
        runs: all runs of the configuration.
        keys: the score of each.
    """
    ended = [run for run in runs if run.status == FINISHED]
    early = all(run.stopped for run in ended)
    kept, left = [], []
    for run, key in zip(runs, keys, strict=True):
        if run.status != FINISHED:
            left.append((run, _REASONS[run.status]))
        elif run.stopped and not early:
            left.append((run, "stopped early, unlike others of the same settings"))
        elif not math.isfinite(run.last.get(key, math.nan)):
            left.append((run, f"without {key} in the last epoch"))
        else:
            kept.append(run)
    return kept, left


def score_keys(runs: Sequence[Run]) -> list[str]:
    """Return the score that each run is to be compared by: its own, but errors instead of losses of several kinds."""
    kinds = {tuple(value_of(run, name) for name in OF_LOSSES) for run in runs if "val_loss" in run.last}
    return [
        f"val_{task_of([run.last, run.best]).score}" if run.score == "val_loss" and len(kinds) > 1 else run.score
        for run in runs
    ]


def same_configuration(runs: Sequence[Run], keys: Sequence[str]) -> list[list[Run]]:
    """Group runs whose configurations are the same without seed and fold, in the order of their first runs.

    Runs without a configuration are grouped by their overrides.

    Args:
        runs: the runs.
        keys: the score that each is to be compared by, which is the same within a group.
    """
    groups: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run, key in zip(runs, keys, strict=True):
        groups[_identity(run), key].append(run)
    return list(groups.values())


def name_groups(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return what sets each group apart: the settings in which they differ, or their overrides if those are fewer.

    A section that some lack is written as on the command line: `~aug.train.rotate` where it is missing, and
    `+aug.train.rotate` where it is not.
    """
    if len(groups) == 1:
        return [str(groups[0][0].sweep or groups[0][0].folder)]
    tokens = _differing([settings_of(runs[0]) for runs in groups])
    overrides = _differing_overrides(groups)
    distinct = all(overrides) and len({tuple(one) for one in overrides}) == len(groups)
    if distinct and (sum(map(len, overrides)) < sum(map(len, tokens)) or not all(tokens)):
        tokens = overrides
    if max(map(len, tokens), default=0) > _SETTINGS:
        # Leave out what most groups have.
        shared = Counter(token for one in tokens for token in one)
        tokens = [[token for token in one if shared[token] <= len(tokens) / 2] or one for one in tokens]
    names = [list_some(one, _SETTINGS, " ") for one in tokens]
    # What is still alike differs in the order of steps or in what was cut.
    return [
        name if name and names.count(name) == 1 else f"{name} ({runs[0].folder})" if name else str(runs[0].folder)
        for name, runs in zip(names, groups, strict=True)
    ]


def settings_of(run: Run) -> Settings:
    """Return a run's settings by their key paths, without what repeats an experiment or changes no result."""
    if not run.config:
        pairs = (override.partition("=") for override in _counted(run.overrides))
        return {key: value for key, _, value in pairs}
    plain = {**run.config, "callbacks": identity(run.config)["callbacks"]}
    found = flat({str(name): value for name, value in plain.items() if name not in ("run", SEED)})
    return {key: value for key, value in found.items() if key not in (FOLD, "fit.resume")}


def value_of(run: Run, key: str) -> str:
    """Return the value of a setting as text, of the configuration or, without one, of the overrides; "" if unknown."""
    if run.config:
        section, _, name = key.rpartition(".")
        value = (section_of(run.config, section) if section else run.config).get(name)
        return "" if value is None else str(value)
    return next((o.partition("=")[2] for o in run.overrides if o.startswith(f"{key}=")), "")


def _identity(run: Run) -> str:
    if not run.config:
        return json.dumps(_counted(run.overrides))
    plain = identity(run.config)
    plain.pop(SEED, None)
    plain["data"].pop("fold", None)
    return identity_text(plain)


def _counted(overrides: Iterable[str]) -> list[str]:
    """Return the overrides that may change a result and do not repeat an experiment."""
    ignored = (*(f"{key}=" for key in REPEATED), "hydra.", "hydra/", "run.", "fit.resume=", "~run", "~hydra")
    return [override for override in overrides if not override.startswith(ignored)]


def _differing_overrides(groups: Sequence[Sequence[Run]]) -> list[list[str]]:
    """Return the overrides that all runs of a group have, but not all groups."""
    own = []
    for runs in groups:
        shared = set.intersection(*[set(run.overrides) for run in runs])
        own.append([override for override in _counted(runs[0].overrides) if override in shared])
    everywhere = set.intersection(*map(set, own)) if own else set()
    return [[override for override in one if override not in everywhere] for one in own]


def _differing(groups: Sequence[Settings]) -> list[list[str]]:
    """Return the settings in which some groups differ, as overrides for each group."""
    above = [{prefix for key in one for prefix in _prefixes(key)} for one in groups]
    named: list[dict[str, str]] = [{} for _ in groups]
    for key in dict.fromkeys(key for one in groups for key in one):
        values = {one[key] for one in groups if key in one}
        if (len(values) == 1 and all(key in one for one in groups)) or _implied(key, groups):
            continue
        kinds = {one.get(_kind(key)) for one in groups if key in one}
        missing = [
            _missing(key, one, there) if one.get(_kind(key)) in kinds else ""
            for one, there in zip(groups, above, strict=True)
        ]
        section = min(filter(None, missing), key=len, default=key)
        for one, tokens, lacks in zip(groups, named, missing, strict=True):
            if lacks:
                tokens[lacks] = f"~{lacks}"
            elif key not in one or section == key == _empty(key):  # it is a section there, with settings or without
                continue
            elif len(values) > 1 or section == key:
                tokens[key] = f"{key}={one[key]}"
            else:
                tokens.setdefault(section, f"+{section}")
    detailed = [{prefix for key in tokens for prefix in _prefixes(key)[:-1]} for tokens in named]
    return [
        [token for key, token in tokens.items() if token[0] != "+" or key not in inner]
        for tokens, inner in zip(named, detailed, strict=True)
    ]


def _kind(key: str) -> str:
    """Return the setting that decides whether there is a setting; empty if none does."""
    return _KINDS.get(key.partition(".")[0], "")


def _implied(key: str, groups: Sequence[Settings]) -> bool:
    """Return whether only some groups have a setting, and the kind of its section alone decides which and its value."""
    if not _kind(key) or all(key in one for one in groups):
        return False
    of_kind: defaultdict[str | None, set[str | None]] = defaultdict(set)
    for one in groups:
        of_kind[one.get(_kind(key))].add(one.get(key))
    return len(of_kind) > 1 and all(len(values) == 1 for values in of_kind.values())


def _missing(key: str, group: Settings, above: set[str]) -> str:
    """Return the highest section of a setting that a group lacks; empty if it has it, or a plain value above it.

    Args:
        key: the setting.
        group: the settings of the group.
        above: all sections and settings of the group.
    """
    path = _prefixes(key)
    if any(prefix in group for prefix in path):
        return ""
    return next((prefix for prefix in path if prefix not in above), "")


def _empty(key: str) -> str:
    """Return the key path that stands for an empty section."""
    return f"{key.rstrip('.')}."


def _prefixes(key: str) -> list[str]:
    parts = key.rstrip(".").split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def flat(values: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return what nested mappings hold as text, by key paths; of an empty one as `_empty` has it."""
    return {_empty(key) if value == {} else key: _text(value) for key, value in leaves(values, prefix)}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value == {} else json.dumps(value, default=str, separators=(",", ":"))
