"""The callback that runs a stress test after training."""

import logging
import sys
from dataclasses import dataclass

from augment.params import Count, setting
from augment.support.errors import UserError, first_line
from augment.support.formatting import printable
from trainer.callbacks.optimizer_steps import ending_of
from trainer.loop.callback import Callback, Phase, configurable
from trainer.loop.checkpoint import BEST
from trainer.loop.lazy_learner import Learner
from trainer.loop.ranks import alone
from trainer.run.folder.summary import PRUNED
from trainer.stress.command import IMAGES, stress

log = logging.getLogger(__name__)


@configurable
@dataclass(eq=False)
class Stress(Callback):
    """Scores the best model under corruptions after training, as `python -m trainer stress` does."""

    images: int = setting(Count(default=IMAGES, within=(1, 10**9), doc="largest number of validation images"))
    main_only = True
    order = Phase.LAST

    def after_fit(self, learner: Learner) -> None:
        """Write stress.json and stress.html. An error is only printed, because the run itself is complete."""
        if learner.error is not None or learner.folder is None or not (learner.folder / BEST).is_file():
            return
        is_pruned = any(callback.reason.startswith(PRUNED) for callback in learner.callbacks)
        if is_pruned or ending_of(learner) != "finished":  # a resumed run tests its model
            return
        try:
            with alone():  # the other ranks wait
                stress(learner.folder, images=self.images, trust=True)
        except (OSError, UserError) as error:
            text = f"the stress test failed: {first_line(error)}"
            log.warning("%s", text)
            sys.stderr.write(printable(f"warning: {text}\n"))
