"""What a search is about: checked, and compared with what the study in its folder began with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.distributions import FloatDistribution

from augment.params import parse_settings
from augment.support.errors import UserError, suggest
from augment.support.files import shown
from augment.support.text import list_some
from trainer.run.config import Config
from trainer.run.identity import identity
from trainer.run.jobs import check_jobs
from trainer.run.sweeping import SearchSettings
from trainer.sweeps.groups import flat
from trainer.sweeps.space import Dimension, grid, parse_space
from trainer.sweeps.study import Search
from trainer.tasks.display import PACE
from trainer.tasks.metric import columns_of
from trainer.tasks.registry import task_named

# What a study remembers of the configuration that its search began with.
_BASE = "base"


@dataclass(frozen=True)
class Plan:
    """What a search is about.

    Attributes:
        search: its study.
        space: what it varies.
        fixed: the normalized overrides that it does not vary.
        base: the configuration that they make.
        config_name: file of conf/ to start from.
    """

    search: Search
    space: tuple[Dimension, ...]
    fixed: tuple[str, ...]
    base: Config
    config_name: str

    @classmethod
    def of(
        cls,
        sweeper: Mapping[str, Any],
        fixed: Sequence[str],
        swept: Sequence[str],
        folder: Path,
        config_name: str,
        *,
        check: bool = True,
    ) -> "Plan":
        """Check a search.

        Args:
            sweeper: Hydra's section `sweeper`.
            fixed: normalized overrides with one value.
            swept: those with several.
            folder: the sweep's folder.
            config_name: file of conf/ to start from.
            check: whether to check each choice and both ends of each interval.

        Raises:
            UserError: a mistake in the settings, in the space, or in the configuration itself.
        """
        given = {name: value for name, value in sweeper.items() if name not in ("kind", "params")}
        settings, space = parse_settings(SearchSettings, given, "hydra.sweeper"), parse_space(swept)
        if not space:
            raise UserError("hydra/sweeper=optuna: nothing to search. Allowed: such as 'fit.lr=interval(1e-3,1e-1)'.")
        for name, params in (settings.enqueue or {}).items():
            _check_enqueued(f"hydra.sweeper.enqueue.{name}", params, {one.key: one for one in space})
        if settings.sampler == "grid":
            grid(space)  # which an interval has not
        (base,) = check_jobs([fixed], config_name=config_name)
        task = task_named(base.dataset.task)
        metrics = settings.metrics or (task.monitor,)
        asked = (*base.fit.metrics, *(values.get("monitor") for values in base.resolved["callbacks"].values()))
        columns = columns_of(task.measured(len(base.dataset.classes), asked))
        measured = {"epoch", *(column.key for column in (*columns, *PACE))}
        if unknown := next((metric for metric in metrics if metric not in measured), None):
            requested = [metric.name for metric in task.metrics if unknown in metric.names]
            hint = f" Allowed: with fit.metrics=[{requested[0]}]." if requested else suggest(unknown, measured)
            raise UserError(f"hydra.sweeper.metrics: {unknown} is not measured.{hint}")
        search = Search(settings, folder, metrics, base.fit.epochs)
        search.check()
        for one in space if check else ():
            _check_values(one, fixed, config_name)
        return cls(search, tuple(space), tuple(fixed), base, config_name)


def _check_values(one: Dimension, fixed: Sequence[str], config_name: str) -> None:
    """Check configurations with each choice of a dimension, or both ends of its interval and a value in between."""
    for value in one.ends:
        check_jobs([[*fixed, one.override(value)]], config_name=config_name)
    if isinstance(one.distribution, FloatDistribution):
        low, high = one.distribution.low, one.distribution.high
        try:
            check_jobs([[*fixed, one.override(low + 0.382 * (high - low))]], config_name=config_name)
        except UserError as error:  # though its ends are allowed
            raise UserError(f"{error} For whole numbers write int(interval({low:g},{high:g})).") from error


def _check_enqueued(where: str, params: object, space: Mapping[str, Dimension]) -> None:
    """Check a configuration to try first; Optuna would ignore a value outside an interval."""
    if not isinstance(params, Mapping) or not {*params} <= {*space}:
        raise UserError(f"{where}: {params!r} is not allowed. Allowed: values of {', '.join(space)}.")
    for key, value in params.items():
        if not space[key].allows(value):
            raise UserError(f"{where}.{key}: {value!r} is not allowed. Allowed: a value of {space[key]}.")


def begin(plan: Plan) -> None:
    """Check that a study that has begun is about the same, as scores of others cannot be compared; note what it is.

    Raises:
        UserError: the configuration, the scores or the choices are not those of the study.
    """
    folder, now = shown(plan.search.folder), flat(identity(plan.base) | {"aug": plan.base.resolved["aug"]})
    with plan.search.locked() as study:
        before = study.user_attrs.get(_BASE, now)
        changed = [key for key in (now | before) if now.get(key) != before.get(key)]
        texts = [f"{key}={now.get(key, 'unset')}, was {before.get(key, 'unset')}" for key in changed]
        if not changed and _of_recipe(now) != _of_recipe(before):
            texts = ["aug: steps or views in another order"]
        if texts:
            raise UserError(
                f"{list_some(texts, 3, '; ')}: not the configuration of the search in {folder}. Allowed: the same; or "
                "another hydra.sweep.dir."
            )
        for one in plan.space:
            for trial in study.get_trials(deepcopy=False):
                if (known := trial.distributions.get(one.key)) is not None:
                    one.check_same(known, folder)
        if _BASE not in study.user_attrs:
            study.set_user_attr(_BASE, now)


def _of_recipe(settings: Mapping[str, str]) -> list[str]:
    return [key for key in settings if key.startswith("aug.")]
