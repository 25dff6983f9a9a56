"""The study of a search: Optuna's record of trials, which several processes share; and what reports to it."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from trainer.run.folder.ownership import PRUNED
from trainer.sweeps.journal import JOB, Journal
from trainer.sweeps.ledger import Job
from trainer.tasks.registry import smaller_is_better

if TYPE_CHECKING:
    from trainer.loop.learner import Learner

STUDY = "search"

_LOCK_FILE = ".study.lock"


# The storages that this process has read, by folder; each reads only what was appended since.
_read: dict[tuple[Path, int, int], storages.BaseStorage] = {}


@dataclass(frozen=True)
class Search:
    """A study in a sweep's folder."""

    settings: SearchSettings
    folder: Path
    metric: str  # the score to improve
    epochs: int  # of a trial that is not pruned; 0: its length is in steps

    @contextmanager
    def locked(self) -> Iterator[Study]:
        """Yield the study while no other process plans a trial; end trials whose processes died meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / _LOCK_FILE):
            study = self.study()
            for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                if JOB not in trial.user_attrs:
                    study.tell(trial.number, state=TrialState.FAIL)
            yield study

    def study(self) -> Study:
        """Return the study, which is made if there is none; a UserError says that it is damaged."""
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
            _read.clear()
            raise UserError(
                f"{shown(self.folder / JOURNAL_FILE)}: damaged, or too large ({first_line(error)}). Allowed: delete "
                "it, and the search begins again; jobs that have finished are not run twice."
            ) from error

    def storage(self) -> storages.BaseStorage:
        """Return the storage of the study."""
        file = self.folder / JOURNAL_FILE
        with locked(file) as opened:
            key = file.resolve(), os.fstat(opened.fileno()).st_ino, os.getpid()
        if key not in _read:
            _read[key] = storages.JournalStorage(Journal(file))
        return _read[key]

    def sampler(self, number: int) -> samplers.BaseSampler:
        """Return the sampler of a trial; each has a seed of its own, whichever process asks."""
        seed = derive_seed("search", self.settings.seed, number) % 2**32
        if self.settings.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return samplers.TPESampler(seed=seed, multivariate=True, group=True)

    def watch(self, job: Job) -> Sequence[Callback]:
        """Return the callbacks of a job: a trial that can be pruned has one."""
        return (Prune(self, job.trial),) if self.settings.prune and job.trial is not None else ()


@dataclass(eq=False)
class Prune(Callback):
    """Reports the score of each epoch; a trial is ended only where it is compared, by successive halving."""

    search: Search
    number: int  # of the trial
    order = Phase.LAST
    reason: str = field(default="", init=False)

    def after_epoch(self, learner: Learner) -> None:
        """Report the epoch; end the fit if the trial is pruned."""
        done, value = learner.progress.epoch + 1, learner.find(Recorder).rows[-1].get(self.search.metric, math.nan)
        if math.isnan(value) or done >= learner.progress.epochs:
            return
        study, storage = self.search.study(), self.search.storage()
        number = storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(STUDY), self.number)
        storage.set_trial_intermediate_value(number, done, value)
        settings, least = self.search.settings, max(1, (self.search.epochs or learner.progress.epochs) // 9)
        pruner = pruners.SuccessiveHalvingPruner(settings.min_epochs or least, settings.reduction)
        if pruner.prune(study, storage.get_trial(number)):
            self.reason = f"{PRUNED}, behind other trials"
            raise CancelFit


def counted(study: Study) -> list[FrozenTrial]:
    """Return the trials that have got a job."""
    return [trial for trial in study.get_trials(deepcopy=False) if JOB in trial.user_attrs]


def best_trials(study: Study, jobs: Container[str]) -> list[FrozenTrial]:
    """Return the complete trials of a study whose jobs are there, the best first, each job once."""
    sign = -1 if study.direction == StudyDirection.MAXIMIZE else 1
    done = sorted(study.get_trials(states=[TrialState.COMPLETE]), key=lambda trial: sign * (trial.value or 0.0))
    by_job = grouped((trial.user_attrs.get(JOB), trial) for trial in done)
    return [best for name, (best, *_) in by_job.items() if name in jobs]
