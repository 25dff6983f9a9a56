"""The callback that reports the epochs of a trial to its study, and ends the trial if it is far behind others."""

import logging
import math
from dataclasses import dataclass, field

from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.learner import Learner
from trainer.sweeps.ledger import PRUNED
from trainer.sweeps.study import STUDY, Search

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Prune(Callback):
    """Reports the score of each epoch; a trial is ended only where it would be compared, see `Search.pruner`.

    Attributes:
        search: the study.
        number: the number of the trial.
    """

    search: Search
    number: int
    order = 101
    reason: str = field(default="", init=False)

    def after_epoch(self, learner: Learner) -> None:
        """Report the epoch; end the fit if the trial is pruned."""
        done, value = learner.epoch + 1, learner.find(Recorder).rows[-1].get(self.search.metrics[0], math.nan)
        if math.isnan(value) or done >= learner.epochs:
            return
        try:
            behind = self._report(done, value)
        except Exception as error:  # a database that is away ends no trial
            log.warning("the epoch was not reported to the study: %s", error)
            return
        if behind:
            self.reason = f"{PRUNED}, behind other trials"
            raise CancelFit

    def _report(self, done: int, value: float) -> bool:
        """Report the score of an epoch, which counts from 1, to the study; return whether to end the trial."""
        study, storage = self.search.study(), self.search.storage()
        number = storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(STUDY), self.number)
        trial = storage.get_trial(number)
        if done not in trial.intermediate_values:
            storage.set_trial_intermediate_value(number, done, value)
            trial = storage.get_trial(number)
        return self.search.pruner().prune(study, trial)
