"""The plan of a search: its space, its starting configuration, and how Optuna chooses the next trial."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, QuotedString, RangeSweep, Sweep
from optuna import logging, samplers
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.study import Study, create_study
from optuna.trial import BaseTrial, FrozenTrial, TrialState, create_trial

from augment.cli.compose import Edit, edited
from augment.cli.config_files import group_names
from augment.cli.overrides import check_range, key_of, parse
from augment.cli.trust import Saved, Start
from augment.params import parse_settings
from augment.support.errors import UserError, suggest
from augment.support.files import shown, write_json
from augment.support.formatting import list_some
from augment.support.secrets import as_written
from augment.support.seeds import derive_seed
from augment.support.untrusted_files import explained_damage
from trainer.run.config.equality import identity
from trainer.run.config.schema import Config, parse_config
from trainer.run.config.sweep_settings import SearchSettings
from trainer.run.folder.locks import SWEEP_FILE
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import FAILED, FINISHED, PRUNED
from trainer.run.jobs import check_configs
from trainer.sweeps.ledger import ENDED, Job, read_ledger
from trainer.sweeps.run_groups import REPEATED, flat
from trainer.sweeps.trials import TRIALS_FILE, Search, Trial, Trials
from trainer.tasks.metric import PACE, columns_of
from trainer.tasks.registry import loss_settings_of, smaller_is_better, task_named

_METRICS = "hydra.sweeper.metrics"

_DEFAULT = Start()

# The key of the starting configuration in `SearchPlan.bases`.
BASE = "base"

# The largest number of combinations of config files.
_MAX_COMBINATIONS = 50

Value = str | int | float | bool | None

# The values that a search tries: choices, or an interval.
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


@dataclass(frozen=True)
class Dimension:
    """A key that a search varies, or a config group."""

    key: str
    distribution: Distribution
    plus: str  # the plus signs of its overrides
    values: Mapping[str, Any] = field(default_factory=dict)  # parsed values of the choices that trials store as text
    group: bool = False  # whether its choices are config files

    def override(self, value: Value) -> str:
        return f"{self.plus}{self.key}={self.text(value)}"

    def text(self, value: Value) -> str:
        """Format a value for an override."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            # Choices may come from a range. Twelve digits drop its rounding errors, such as 0.30000000000000004.
            digits = 6 if isinstance(self.distribution, FloatDistribution) else 12
            return f"{value:.{digits}g}"
        return "null" if value is None else str(value)

    def value(self, chosen: Value) -> Any:
        """Convert a trial's value to the value of the setting. Interpolations stay unresolved.

        Raises:
            UserError: the value is not in the space.
        """
        values = self.distribution
        if isinstance(values, CategoricalDistribution):
            allowed = any(type(one) is type(chosen) and one == chosen for one in values.choices)
        else:
            allowed = type(chosen) in (int, float) and values.low <= float(chosen or 0) <= values.high
        if not allowed:
            raise UserError(f"{self.key}: {chosen!r} is not a value of this search. Choose another hydra.sweep.dir.")
        if isinstance(chosen, float):
            text = self.text(chosen)
            return int(text) if text.lstrip("-").isdecimal() else float(text)
        return self.values.get(chosen, chosen) if isinstance(chosen, str) else chosen

    @property
    def samples(self) -> Sequence[Any]:
        """All choices, or both ends of an interval. For an interval of floats, also a value in between."""
        values = self.distribution
        if isinstance(values, CategoricalDistribution):
            return values.choices
        between = [values.low + 0.382 * (values.high - values.low)] if isinstance(values, FloatDistribution) else []
        return [values.low, values.high, *between]

    def suggest(self, trial: BaseTrial) -> Value:
        values = self.distribution
        if isinstance(values, FloatDistribution):
            return trial.suggest_float(self.key, values.low, values.high, log=values.log)
        if isinstance(values, IntDistribution):
            return trial.suggest_int(self.key, values.low, values.high, log=values.log)
        return trial.suggest_categorical(self.key, values.choices)

    def active(self, chosen: Mapping[str, Value]) -> bool:
        """Return whether the key has an effect, given the values of the dimensions before it.

        It has no effect inside a mapping that is null, or in a step with p=0.
        """
        parts = self.key.split(".")
        for count in range(1, len(parts)):
            above = ".".join(parts[:count])
            if above in chosen and chosen[above] in (None, "null"):
                return False
            if f"{above}.p" in chosen and parts[count] != "p" and chosen[f"{above}.p"] == 0:
                return False
        return True


def parse_space(tokens: Sequence[str]) -> list[Dimension]:
    """Parse normalized overrides with several values. Dimensions that can disable others come first."""
    dimensions, groups = [], group_names()
    for token in tokens:
        override = parse(token)
        key = key_of(override)
        if key in REPEATED:
            raise UserError(
                f"{key} cannot be searched, because the search would only pick a lucky value. It reruns its best "
                f"configurations with several seeds anyway. Set {key}=0."
            )
        distribution = _distribution(override, token.lstrip("+"))
        plus = token[: len(token) - len(token.lstrip("+"))]
        choices = distribution.choices if isinstance(distribution, CategoricalDistribution) else ()
        parsed = {text: parse(f"{plus}{key}={text}").value() for text in choices if isinstance(text, str)}
        group = key in groups and not any(isinstance(value, dict) for value in parsed.values())
        dimensions.append(Dimension(key, distribution, plus, parsed, group))
    # A step's p can disable its other parameters, and a key can disable the longer keys below it.
    return sorted(dimensions, key=lambda one: (one.key.count("."), not one.key.endswith(".p")))


def suggest_from(trial: BaseTrial, space: Sequence[Dimension]) -> dict[str, Value]:
    """Draw the values of a trial, except values without an effect."""
    chosen: dict[str, Value] = {}
    for one in space:
        if one.active(chosen):
            chosen[one.key] = one.suggest(trial)
    return chosen


def overrides_of(chosen: Mapping[str, Value], space: Sequence[Dimension]) -> list[str]:
    """Return the overrides that set some values."""
    return [one.override(chosen[one.key]) for one in space if one.key in chosen]


def _distribution(override: Override, token: str) -> Distribution:
    value, choices = override.value(), list[Any]()
    if isinstance(value, IntervalSweep):
        log, low, high = "log" in value.tags, value.start, value.end
        if low is None or high is None or low >= high or (log and low <= 0):
            raise UserError(
                f"{token} is not a valid interval. Write interval(low, high) with low < high. If it has a log tag, low "
                "must be above 0."
            )
        if isinstance(low, int) and isinstance(high, int):  # only int(interval(...)) has integers as ends
            return IntDistribution(low, high, log=log)
        return FloatDistribution(float(low), float(high), log=log)
    if isinstance(value, RangeSweep):
        check_range(key_of(override), value)
        choices = [*value.range()]
    elif isinstance(value, ChoiceSweep) and not any(isinstance(one, Sweep) for one in value.list):
        # Optuna stores only scalars, so other values become the text of an override.
        texts = zip(value.list, override.sweep_string_iterator(), strict=True)
        choices = [text if isinstance(one, QuotedString | list | dict) else one for one, text in texts]
    if not choices:
        raise UserError(
            f"{token} cannot be searched. Allowed: interval(low, high), tag(log, interval(...)), "
            "int(interval(...)), range(...), choice(...) or values with commas."
        )
    return CategoricalDistribution(choices)


@dataclass(frozen=True)
class SearchPlan(Search):
    """A search: its trials, the settings that it varies, and the configuration that it starts from."""

    space: tuple[Dimension, ...]
    fixed: tuple[str, ...]  # the normalized overrides that it does not vary, only for display
    base: Config  # the starting configuration
    # The configurations that trials change, one for each combination of config files, see `_choice`
    bases: Mapping[str, Mapping[str, Any]]
    trust: bool = True  # False if `bases` come from a folder that the user does not trust

    @classmethod
    def of(
        cls,
        sweeper: Mapping[str, Any],
        fixed: Sequence[str],
        swept: Sequence[str],
        folder: Path,
        start: Start = _DEFAULT,
        *,
        check: bool = True,
    ) -> "SearchPlan":
        """Compose and check a search.

        Args:
            sweeper: the settings of the search, which are Hydra's section `sweeper`.
            fixed: the normalized overrides with one value.
            swept: the normalized overrides with several values.
            folder: the folder of the sweep.
            start: the configuration that the overrides change.
            check: whether to check each choice.
        """
        space = parse_space(swept)
        if not space:
            raise UserError("hydra/sweeper=optuna has nothing to search. Add a space: 'fit.lr=interval(1e-3,1e-1)'.")
        groups = [one for one in space if one.group]
        keys, combinations = [one.key for one in groups], product(*(one.samples for one in groups))
        chosen = [dict(zip(keys, files, strict=True)) for files in islice(combinations, _MAX_COMBINATIONS + 1)]
        if len(chosen) > _MAX_COMBINATIONS:
            raise UserError(
                f"{keys[0]}: more than {_MAX_COMBINATIONS} combinations of config files. Search fewer files at once."
            )
        bases = {_choice(values): start.raw([*fixed, *overrides_of(values, space)]) for values in chosen}
        plan = cls.build(sweeper, space, fixed, {BASE: start.raw(fixed), **bases}, folder)
        for one in space if check else ():
            check_configs([plan.config({one.key: value}) for value in one.samples])
        return plan

    @classmethod
    def read(cls, sweeper: Mapping[str, Any], found: Mapping[str, Any], folder: Path, *, trust: bool) -> "SearchPlan":
        """Read the search that `plain` wrote into the file of a sweep."""
        with explained_damage(file := folder / SWEEP_FILE):
            space = [_dimension(one) for one in found["space"]]
            fixed = tuple(map(str, found["fixed"]))
            bases = {str(key): dict(value) for key, value in found["bases"].items()}
            if BASE not in bases:
                raise ValueError(f"no {BASE}")
        for values in bases.values():  # check all of them before the first trial
            Saved(values, file, trust).with_overrides()
        return cls.build(sweeper, space, fixed, bases, folder, trust=trust)

    def plain(self) -> dict[str, Any]:
        """Return the search as plain values for the file of a sweep, so that it can be resumed without Hydra."""
        plain = {"fixed": list(self.fixed), "space": list(map(_plain, self.space))}
        return plain | {"bases": as_written(self.bases)}

    @property
    def start_settings(self) -> dict[str, str]:
        """The settings that must stay the same when the search continues. Otherwise, scores could not be compared."""
        resolved = self.base.resolved
        return {**flat(identity(resolved) | {"aug": resolved["aug"]}), _METRICS: self.metric}

    def check_start(self) -> None:
        """Check that earlier trials in the folder had the same `start_settings`, and that the space contains them.

        Raises:
            UserError: a setting or the space differs.
        """
        recorded, now = self.recorded(), self.start_settings
        before = recorded.start or now
        changed = [key for key in {**now, **before} if now.get(key) != before.get(key)]
        if changed:
            texts = [f"{key}={now.get(key, 'unset')}, was {before.get(key, 'unset')}" for key in changed]
            raise UserError(
                f"{list_some(texts, 3, '; ')}: the search in {shown(self.folder)} started with a different "
                "configuration. Use that configuration, or choose another hydra.sweep.dir."
            )
        for trial in recorded.trials:
            self.params(trial.chosen)

    def add(self, trial: Trial) -> None:
        trials = Trials(self.start_settings, (*self.recorded().trials, trial))
        write_json(self.folder / TRIALS_FILE, asdict(trials))

    def params(self, chosen: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values of a trial. Raise UserError if one of them is not in the space."""
        own = [one for one in self.space if one.key in chosen]
        for one in own:
            one.value(chosen[one.key])
        return {one.key: chosen[one.key] for one in own}

    def frozen(self) -> list[FrozenTrial]:
        """Return the trials for Optuna, with the ID of the job as user attribute."""
        jobs, trials = read_ledger(self.folder), self.recorded().trials
        known = {trial.job for trial in trials}
        outcomes = {job.id: self._outcome(job) for job in jobs if job.id in known}  # trials may share a job
        return [self._frozen(trial, *outcomes.get(trial.job, (FAILED, math.nan, {}))) for trial in trials]

    def _outcome(self, job: Job) -> tuple[str, float, dict[int, float]]:
        """Return the status of a job, its last score if it has finished, and all its scores if it was pruned."""
        status = job.status()
        last = RunFolder(job.folder).last.get(self.metric, math.nan) if status == FINISHED else math.nan
        return status, last, self.scores(job) if status == PRUNED else {}

    def _frozen(self, trial: Trial, status: str, last: float, scores: dict[int, float]) -> FrozenTrial:
        """Return a trial for Optuna. It fails if its job failed, was deleted, or finished without a score."""
        params = self.params(trial.chosen)
        if status not in ENDED:
            state = TrialState.RUNNING
        elif status == PRUNED:
            state = TrialState.PRUNED
        else:
            state = TrialState.FAIL if math.isnan(last) else TrialState.COMPLETE
        return create_trial(
            state=state,
            value=None if math.isnan(last) else last,
            params=params,
            distributions={one.key: one.distribution for one in self.space if one.key in params},
            intermediate_values=scores,
            user_attrs={"job": trial.job},
        )

    def study(self, trials: Sequence[FrozenTrial]) -> Study:
        """Return a study that chooses the next trial. Its choice depends only on the seed and on the trials."""
        logging.set_verbosity(logging.ERROR)
        seed = derive_seed("search", self.settings.seed, len(trials)) % 2**32
        sampler: samplers.BaseSampler = samplers.RandomSampler(seed=seed)
        if self.settings.sampler == "tpe":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                sampler = samplers.TPESampler(seed=seed, multivariate=True, group=True)
        study = create_study(sampler=sampler, direction="minimize" if smaller_is_better(self.metric) else "maximize")
        study.add_trials([trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)])
        return study

    @classmethod
    def build(
        cls,
        sweeper: Mapping[str, Any],
        space: Sequence[Dimension],
        fixed: Sequence[str],
        bases: Mapping[str, Mapping[str, Any]],
        folder: Path,
        *,
        trust: bool = True,
    ) -> "SearchPlan":
        """Build a search. Check its settings, its metric and its starting configuration."""
        given = {name: value for name, value in sweeper.items() if name not in ("kind", "params")}
        settings = parse_settings(SearchSettings, given, "hydra.sweeper")
        base = parse_config(Saved(bases[BASE], folder / SWEEP_FILE, trust).with_overrides())
        check_configs([base])
        metric = _metric(settings, base, space)
        return cls(settings, folder, metric, tuple(space), tuple(fixed), base, bases, trust)

    def config(self, chosen: Mapping[str, Value], seed: int | None = None) -> Config:
        """Return the configuration of a trial, by default with the seed of the starting configuration.

        Raises:
            UserError: a value is not in the space. The trials may come from a stranger.
        """
        files = {one.key: chosen[one.key] for one in self.space if one.group and one.key in chosen}
        if (base := self.bases.get(_choice(files))) is None:
            raise UserError(f"{_choice(files)} is not a choice of this search. Choose another hydra.sweep.dir.")
        own = [one for one in self.space if one.key in chosen and not one.group]
        edits = [Edit(one.key, one.value(chosen[one.key])) for one in own]
        edits += [] if seed is None else [Edit("seed", seed)]
        return parse_config(Saved(edited(base, edits), self.folder / SWEEP_FILE, self.trust).with_overrides())


def _metric(settings: SearchSettings, base: Config, space: Sequence[Dimension]) -> str:
    """Return the metric of a search, if it is measured and means the same in all trials."""
    if len(settings.metrics) > 1:
        raise UserError(
            f"{_METRICS}: {list(settings.metrics)} is not allowed. Choose one metric. To see others, use compare "
            "--metric."
        )
    task, classes, model = task_named(base.dataset.task), base.dataset.classes, base.model
    (metric,) = settings.metrics or (task.monitor,)
    used = columns_of(task.measured(classes, base.asked_metrics, model))
    measured = {"epoch", *(column.key for column in (*used, *PACE))}
    if metric not in measured:
        requested = [one.name for one in task.measured(classes, (metric,), model) if metric in one.names]
        hint = f" Add fit.metrics=[{requested[0]}]." if requested else suggest(metric, measured)
        raise UserError(f"{_METRICS}: {metric} is not measured.{hint}")
    losses = loss_settings_of(metric, task)
    for one in space if losses else ():
        if one.key.startswith(losses):
            raise UserError(
                f"{one.key} cannot be searched by {metric}, because it changes this loss. Choose another metric, such "
                f"as {_METRICS}=[val_{task.score}]."
            )
    return metric


def _choice(files: Mapping[str, Value]) -> str:
    """Return the key of a combination of config files in `SearchPlan.bases`, such as "aug=mine model=timm"."""
    return " ".join(f"{group}={name}" for group, name in files.items()) or BASE


def _plain(one: Dimension) -> dict[str, Any]:
    """Return a dimension as plain values, which `_dimension` reads."""
    values = one.distribution
    about: dict[str, Any] = {"key": one.key, "plus": one.plus, "group": one.group}
    if isinstance(values, CategoricalDistribution):
        return about | {"choices": list(values.choices), "values": dict(one.values)}
    return about | {"low": values.low, "high": values.high, "log": values.log}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))


def _dimension(found: Mapping[str, Any]) -> Dimension:
    """Return the dimension that `_plain` wrote. The file may come from a stranger."""
    about = (str(found["plus"]), dict(found.get("values", {})), found["group"] is True)
    if not all(map(_is_plain, found.get("choices") or (found["low"], found["high"]))):
        raise TypeError(f"the values of {found['key']} are not plain")
    if "choices" in found:
        return Dimension(str(found["key"]), CategoricalDistribution(found["choices"]), *about)
    low, high, log = found["low"], found["high"], found["log"] is True
    kind = IntDistribution if isinstance(low, int) else FloatDistribution
    return Dimension(str(found["key"]), kind(low, high, log=log), *about)
