"""The trials of a search, and the callback that ends trials that are behind others.

Several processes can share a search. One file records the values of all trials. The scores are in the folders of their
jobs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augment.support.untrusted_files import UnreadableError, locked, read_as
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit, Phase
from trainer.loop.lazy_learner import Learner
from trainer.run.config.sweep_settings import MAX_TRIALS, SearchSettings
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import PRUNED
from trainer.sweeps.ledger import Job, read_ledger
from trainer.tasks.registry import smaller_is_better

TRIALS_FILE = "trials.json"

_LOCK_FILE = ".trials.lock"


@dataclass(frozen=True)
class Trial:
    """A trial of a search."""

    chosen: Mapping[str, Any]  # the values that it chose, by key
    job: str  # the ID of its job. Empty if its configuration is invalid


@dataclass(frozen=True)
class Trials:
    """The content of `TRIALS_FILE`."""

    # See `trainer.sweeps.search_space.SearchPlan.start_settings`
    start: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()  # in the order in which they began


@dataclass(frozen=True)
class Search:
    """The trials in a sweep's folder, and the settings of their search."""

    settings: SearchSettings
    folder: Path
    metric: str  # the score to optimize

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that a process needs to plan a trial."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / _LOCK_FILE):
            yield

    def recorded(self) -> Trials:
        """Read the trials so far."""
        file = self.folder / TRIALS_FILE
        recorded = read_as(Trials, file) if file.exists() else Trials()
        if len(recorded.trials) > MAX_TRIALS:
            raise UnreadableError(f"{file}: more than {MAX_TRIALS:,} trials, which no search has. Restore it.")
        return recorded

    def scores(self, job: Job) -> dict[int, float]:
        """Return the scores of a job by the number of its epochs so far."""
        rows = enumerate(RunFolder(job.folder).rows, start=1)
        return {done: row[self.metric] for done, row in rows if not math.isnan(row.get(self.metric, math.nan))}

    def callbacks_of(self, job: Job) -> Sequence[Callback]:
        """Return `Prune` for a trial that can be pruned. Other jobs get no callback."""
        return (Prune(self, job.id),) if self.settings.prune and job.trial is not None else ()


@dataclass(eq=False)
class Prune(Callback):
    """Ends a trial that is behind others: asynchronous successive halving (Li et al. 2018, arXiv:1810.05934).

    It compares only trials with the same number of epochs. It first compares trials after `min_epochs` epochs. With the
    default `reduction` of 3, the best third continues, and is compared again after three times as many epochs, and so
    on.
    """

    search: Search
    job: str  # the ID of the trial's job
    order = Phase.LAST
    reason: str = field(default="", init=False)

    def after_epoch(self, learner: Learner) -> None:
        if learner.ranks.broadcast(self._is_behind(learner)):  # the other ranks have `EndWithMain`
            self.reason = f"{PRUNED}, behind other trials"
            raise CancelFit

    def _is_behind(self, learner: Learner) -> bool:
        search, settings, epochs = self.search, self.search.settings, learner.progress.epochs
        done = learner.progress.epoch + 1
        compared_at = settings.min_epochs or max(1, epochs // 9)
        while compared_at < done:
            compared_at *= settings.reduction
        value = learner.find(Recorder).rows[-1].get(search.metric, math.nan)
        if compared_at != done or done >= epochs or math.isnan(value):
            return False
        others = [job for job in read_ledger(search.folder) if job.trial is not None and job.id != self.job]
        # If the search varies fit.epochs, other trials may be further in their schedules.
        others = [job for job in others if len(RunFolder(job.folder).facts.batches) in (0, epochs)]
        scores = [search.scores(job).get(done) for job in others]
        sign = 1 if smaller_is_better(search.metric) else -1
        ranked = sorted(sign * score for score in (*scores, value) if score is not None)
        kept = max(1, len(ranked) // settings.reduction)
        return sign * value > ranked[kept - 1]
