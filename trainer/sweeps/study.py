"""The study of a search: Optuna's record of trials, which several processes share."""

import fcntl
import os
import time
import warnings
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from augment.support.errors import UserError, first_line
from augment.support.files import shown
from trainer.run.sweeping import JOURNAL_FILE, SearchSettings
from trainer.tasks.registry import smaller_is_better

STUDY = "search"

_LOCK_FILE = ".study.lock"
_JOB, _REPEATS, _METRICS = "job", "repeats", "metrics"

# Seconds after which a trial without a job is one of a process that was killed in between. The clock may be set back.
# Start times have no zone; those of other hosts, or of summer, differ by multiples of a quarter of an hour.
_STALE, _QUARTER = 60.0, 900.0


class _Journal(JournalFileBackend):
    """A journal whose last line may have been cut short by a full disk or a power failure."""

    def __init__(self, file: Path) -> None:
        self._file, self._access = file, JournalFileSymlinkLock(str(file))
        super().__init__(str(file), self._access)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, which Optuna alone would append to half a line, and never read again."""
        self._access.acquire()
        try:
            with self._file.open("rb+") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.seek(0)
                        file.truncate(file.read().rfind(b"\n") + 1)
        finally:
            self._access.release()
        super().append_logs(logs)


@dataclass(frozen=True)
class Search:
    """A study in a sweep's folder.

    Attributes:
        settings: its settings.
        folder: the sweep's folder.
        metrics: the scores to improve.
        epochs: the epochs of a trial that is not pruned.
    """

    settings: SearchSettings
    folder: Path
    metrics: tuple[str, ...]
    epochs: int

    def check(self) -> None:
        """Check what needs no study.

        Raises:
            UserError: hydra.sweeper.directions or hydra.sweeper.storage is not allowed.
        """
        names, url = self.settings.directions, self.settings.storage
        if names and (len(names) != len(self.metrics) or not {*names} <= {"minimize", "maximize"}):
            raise UserError(
                f"hydra.sweeper.directions: {list(names)} is not allowed. Allowed: maximize or minimize, for each of "
                f"hydra.sweeper.metrics ({', '.join(self.metrics)})."
            )
        if url is not None and not urlsplit(url).scheme:
            raise UserError(f"hydra.sweeper.storage: {url!r} is not a URL. Allowed: such as sqlite:///search.db.")

    @contextmanager
    def locked(self) -> Iterator[Study]:
        """Yield the study while no other process of this host asks it for trials."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.study()

    def study(self) -> Study:
        """Return the study, which is made if there is none.

        Raises:
            UserError: its storage cannot be used, or it has other objectives.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        names = self.settings.directions or [
            "minimize" if smaller_is_better(metric) else "maximize" for metric in self.metrics
        ]
        directions = [StudyDirection[name.upper()] for name in names]
        try:
            study = optuna.create_study(
                storage=self.storage(),
                study_name=STUDY,
                directions=directions,
                load_if_exists=True,
                sampler=RandomSampler(seed=self.settings.seed),
            )
        except OSError:
            raise
        except Exception as error:  # of any database
            if self.settings.storage is None:
                raise UserError(
                    f"{shown(self.folder / JOURNAL_FILE)}: damaged ({first_line(error)}). Allowed: delete it, and the "
                    "search begins again; jobs that have finished are not run twice."
                ) from error
            raise UserError(f"hydra.sweeper.storage: {first_line(error)}.") from error
        metrics = study.user_attrs.get(_METRICS)
        if metrics is None:
            study.set_user_attr(_METRICS, self.metrics)
        elif study.directions != directions or metrics != [*self.metrics]:
            had = ", ".join(f"{one.name.lower()} {key}" for one, key in zip(study.directions, metrics, strict=True))
            raise UserError(
                f"hydra.sweeper.metrics: the search in {shown(self.folder)} began with {had}. Allowed: the same; or "
                "another hydra.sweep.dir."
            )
        return study

    def storage(self) -> BaseStorage:
        """Return the storage of the study."""
        url = self.settings.storage
        if url is None:
            return JournalStorage(_Journal(self.folder / JOURNAL_FILE))
        return optuna.storages.get_storage(url)

    def pruner(self) -> BasePruner:
        """Return what decides whether a trial with a single score ends early."""
        least = self.settings.min_epochs or max(1, self.epochs // 9)
        return SuccessiveHalvingPruner(min_resource=least, reduction_factor=self.settings.reduction)

    def sampler(self, number: int) -> BaseSampler:
        """Return the sampler of a trial; each has a seed of its own, whichever process asks."""
        seed = self.settings.seed + number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            if self.settings.sampler == "tpe":
                return TPESampler(seed=seed, multivariate=True, group=True)
            if self.settings.sampler == "cmaes":
                return CmaEsSampler(seed=seed, warn_independent_sampling=False)
            if self.settings.sampler == "qmc":  # a sequence of points, which one seed makes
                return QMCSampler(seed=self.settings.seed, warn_independent_sampling=False)
            return RandomSampler(seed=seed)


def ask(search: Search, study: Study) -> Trial:
    """Return a new trial; the study must be locked."""
    study.sampler = search.sampler(len(study.get_trials(deepcopy=False)))
    return study.ask()


def repeat(study: Study, trial: FrozenTrial) -> None:
    """Queue a failed trial again, under another number with the same job: Optuna's trials end once."""
    again = optuna.create_trial(
        state=TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=trial.user_attrs | {_REPEATS: trial.number},
        system_attrs=trial.system_attrs,
        intermediate_values=trial.intermediate_values,
    )
    study.add_trial(again)


def counted(study: Study) -> list[FrozenTrial]:
    """Return the trials that have begun, except those that are repeated.

    Those of processes that were killed before they had a job have failed.
    """
    trials, known = [], study.get_trials(deepcopy=False)
    repeated = {trial.user_attrs.get(_REPEATS) for trial in known}
    for trial in known:
        if trial.number in repeated:
            continue
        state, begun, bare = trial.state, trial.datetime_start, job_of(trial) is None
        age = 0.0 if begun is None else (time.time() - begun.timestamp()) % _QUARTER
        if state == TrialState.RUNNING and bare and _STALE < age < _QUARTER - _STALE:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        elif state != TrialState.WAITING and not (state == TrialState.FAIL and bare):
            trials.append(trial)
    return trials


def job_of(trial: FrozenTrial) -> str | None:
    """Return the id of a trial's job; None if it has none yet."""
    return trial.user_attrs.get(_JOB)


def set_job(trial: Trial, job: str) -> None:
    """Record the job of a trial."""
    trial.set_user_attr(_JOB, job)


def best_trials(study: Study, jobs: Container[str]) -> list[FrozenTrial]:
    """Return the complete trials of a study with one score whose jobs are there, the best first, each job once."""
    sign = -1 if study.direction == StudyDirection.MAXIMIZE else 1
    done = study.get_trials(states=[TrialState.COMPLETE])
    done.sort(key=lambda trial: sign * (trial.value or 0.0))
    by_job: dict[str, FrozenTrial] = {}
    for trial in done:
        if (name := job_of(trial)) is not None and name in jobs:
            by_job.setdefault(name, trial)
    return list(by_job.values())


def importances(study: Study) -> dict[str, float]:
    """Return the share of each key in the spread of scores (PED-ANOVA); empty with too few trials."""
    done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if len(done) < 10 or len(study.directions) > 1:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about ties
            found = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
    except (ValueError, RuntimeError):  # all alike
        return {}
    return dict(found)
