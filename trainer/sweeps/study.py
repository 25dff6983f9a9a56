"""The study of a search, which is Optuna's record of trials, and the callback that reports to it.

Several processes can share a study.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna import pruners, samplers, storages
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from augment.support.errors import UserError, first_line
from augment.support.files import shown
from augment.support.nested import grouped
from augment.support.seeds import derive_seed
from augment.support.untrusted_files import locked
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit, Phase
from trainer.run.config.sweep_settings import JOURNAL_FILE, SearchSettings
from trainer.run.folder.summary import PRUNED
from trainer.sweeps.journal import JOB, Journal
from trainer.sweeps.ledger import Job
from trainer.tasks.registry import smaller_is_better

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

STUDY = "search"

_LOCK_FILE = ".study.lock"


@cache
def _storage(file: Path, _inode: int, _process: int) -> storages.BaseStorage:
    """Return the storage of a file, which this process reads once. It then reads only the records that follow."""
    return storages.JournalStorage(Journal(file))


@dataclass(frozen=True)
class Search:
    """A study in a sweep's folder, and the settings of its search."""

    settings: SearchSettings
    folder: Path
    metric: str  # the score to optimize
    epochs: int  # epochs of a trial that is not pruned, or 0 if fit.steps sets its length

    @contextmanager
    def locked(self) -> Iterator[Study]:
        """Yield the study while no other process plans a trial. If a process died while planning, its trial fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / _LOCK_FILE):
            study = self.study()
            for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                if JOB not in trial.user_attrs:
                    study.tell(trial.number, state=TrialState.FAIL)
            yield study

    def study(self) -> Study:
        """Load the study, or create it.

        Raises:
            UserError: the study is damaged.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        direction = StudyDirection.MINIMIZE if smaller_is_better(self.metric) else StudyDirection.MAXIMIZE
        try:
            storage = self.storage()
            try:
                return optuna.load_study(storage=storage, study_name=STUDY)
            except KeyError:
                return optuna.create_study(storage=storage, study_name=STUDY, direction=direction, load_if_exists=True)
        except (OSError, UserError):
            raise
        except Exception as error:
            _storage.cache_clear()
            raise UserError(
                f"{shown(self.folder / JOURNAL_FILE)} is damaged or too large ({first_line(error)}). To start the "
                "search again, delete this file. Finished jobs do not run twice."
            ) from error

    def storage(self) -> storages.BaseStorage:
        file = self.folder / JOURNAL_FILE
        with locked(file) as opened:
            inode = os.fstat(opened.fileno()).st_ino
        return _storage(file.resolve(), inode, os.getpid())

    def sampler(self, number: int) -> samplers.BaseSampler:
        """Return the sampler of a trial. Its seed depends only on the search's seed and the trial's number."""
        seed = derive_seed("search", self.settings.seed, number) % 2**32
        if self.settings.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return samplers.TPESampler(seed=seed, multivariate=True, group=True)

    def watch(self, job: Job) -> Sequence[Callback]:
        """Return the callbacks of a job: `Prune` if it is a trial that can be pruned."""
        return (Prune(self, job.trial),) if self.settings.prune and job.trial is not None else ()


@dataclass(eq=False)
class Prune(Callback):
    """Reports the score of each epoch, and ends trials that are behind others (successive halving)."""

    search: Search
    number: int  # the trial's number
    order = Phase.LAST
    reason: str = field(default="", init=False)

    def after_epoch(self, learner: Learner) -> None:
        if learner.ranks.broadcast(self._is_behind(learner)):  # the other ranks have `EndWithMain`
            self.reason = f"{PRUNED}, behind other trials"
            raise CancelFit

    def _is_behind(self, learner: Learner) -> bool:
        done, value = learner.progress.epoch + 1, learner.find(Recorder).rows[-1].get(self.search.metric, math.nan)
        if math.isnan(value) or done >= learner.progress.epochs:
            return False
        study, storage = self.search.study(), self.search.storage()
        number = storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(STUDY), self.number)
        storage.set_trial_intermediate_value(number, done, value)
        settings, least = self.search.settings, max(1, (self.search.epochs or learner.progress.epochs) // 9)
        pruner = pruners.SuccessiveHalvingPruner(settings.min_epochs or least, settings.reduction)
        return pruner.prune(study, storage.get_trial(number))


def counted(study: Study) -> list[FrozenTrial]:
    """Return the trials that count: trials with a job, and trials that were not possible."""
    return [trial for trial in study.get_trials(deepcopy=False) if JOB in trial.user_attrs]


def best_trials(study: Study, jobs: Container[str]) -> list[FrozenTrial]:
    """Return the complete trials whose jobs still exist, the best first. Each job counts once."""
    sign = -1 if study.direction == StudyDirection.MAXIMIZE else 1
    done = sorted(study.get_trials(states=[TrialState.COMPLETE]), key=lambda trial: sign * (trial.value or 0.0))
    by_job = grouped((trial.user_attrs.get(JOB), trial) for trial in done)
    return [best for name, (best, *_) in by_job.items() if name in jobs]
