"""How much each setting of a sweep matters for its score."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median, quantiles
from typing import Any

from augment.support.text import amount

FEWEST = 6  # jobs
_SEARCHED = 20  # jobs
_LEVELS = 8  # more different numbers than these are binned

_VARIANCE_NOTE = (
    "Share of the variance of the last score that a setting explains on its own (epsilon squared, which is about 0 for "
    "a setting without effect), over {}. What settings do only in combination is not in it; settings that were varied "
    "together share what they explain; numbers with many values are put into four bins."
)
_PED_ANOVA_NOTE = (
    "PED-ANOVA (Watanabe et al. 2023), over {}: how differently the values of the best tenth of the jobs are "
    "distributed, of all settings together 1. It describes where the search looked, so it is rough for settings that a "
    "sampler soon fixed; settings that not every job has are left out."
)


def importance(
    settings: Mapping[str, Sequence[object]], scores: Sequence[float], smaller: bool
) -> dict[str, Any] | None:
    """Return the importance of each setting, the greatest first, and a note on what it is; None for too few jobs.

    A search over numbers is measured by PED-ANOVA, a grid by shares of variance.

    Args:
        settings: for each setting its value in each job; None: the job has none.
        scores: the last score of each job.
        smaller: whether a smaller score is better.
    """
    if len(scores) < FEWEST or len(set(scores)) < 2:
        return None
    searched = any(len(set(_numbers(values) or ())) > _LEVELS for values in settings.values())
    shares, note = {key: _explained(values, scores) for key, values in settings.items()}, _VARIANCE_NOTE
    if searched and len(scores) >= _SEARCHED:
        shares, note = _ped_anova(settings, scores, smaller), _PED_ANOVA_NOTE
    rows = [[key, round(share, 4)] for key, share in sorted(shares.items(), key=lambda row: -row[1])]
    return {"rows": rows, "note": note.format(amount(len(scores), "finished job"))} if rows else None


def _numbers(values: Sequence[object]) -> list[float] | None:
    """Return values as numbers; None if one of them is none."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return numbers if len(numbers) == len(values) else None


def _explained(values: Sequence[object], scores: Sequence[float]) -> float:
    """Return epsilon squared: the share of the variance between the values of a setting, corrected for chance."""
    levels, numbers = values, _numbers(values) or ()
    if len(set(numbers)) > _LEVELS:
        cuts = quantiles(numbers, n=4)
        levels = [sum(number > cut for cut in cuts) for number in numbers]
    of_level: defaultdict[object, list[float]] = defaultdict(list)
    for level, score in zip(levels, scores, strict=True):
        of_level[level].append(score)
    center = fmean(scores)
    total = math.fsum((score - center) ** 2 for score in scores)
    within = math.fsum((score - fmean(group)) ** 2 for group in of_level.values() for score in group)
    free = len(scores) - len(of_level)
    if free < 1:  # a value for each job explains everything, and nothing
        return 0.0
    return max(0.0, 1 - within / free * (len(scores) - 1) / total) if total else 0.0


def _ped_anova(settings: Mapping[str, Sequence[object]], scores: Sequence[float], smaller: bool) -> dict[str, float]:
    import optuna  # takes a while
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    from trainer.sweeps.study import importances

    optuna.logging.disable_default_handler()
    distributions: dict[str, BaseDistribution] = {}
    columns: dict[str, list[Any]] = {}
    for key, values in settings.items():
        if None in values:
            continue
        if numbers := _numbers(values):
            low, high = min(numbers), max(numbers)
            # Most of the values of a search on a logarithmic scale are small.
            log = low > 0 and high / low > 50 and median(numbers) < high / 4
            columns[key], distributions[key] = numbers, FloatDistribution(low, high, log=log)
        else:
            columns[key] = [*map(str, values)]
            distributions[key] = CategoricalDistribution([*dict.fromkeys(columns[key])])
    study = optuna.create_study(direction="minimize" if smaller else "maximize")
    for i, score in enumerate(scores):
        params = {key: column[i] for key, column in columns.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    return importances(study)
