"""Weights & Biases: one dashboard run for each run. The package is imported only where the callback is used."""

import netrc
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from augment.params import SENDS, Choice, Text, setting
from trainer.callbacks.plots import BATCH, HISTORY
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.registry import configurable
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner


@configurable
@dataclass(eq=False)
class Wandb(Callback):
    """Logs each epoch's metrics, the configuration and the images to Weights & Biases."""

    project: str = setting(Text(default="dali-trainer", doc="project on the dashboard", reach=SENDS))
    mode: str = setting(
        Choice(
            default="auto",
            options=("auto", "online", "offline", "disabled"),
            doc="auto: online with an account (WANDB_API_KEY or a netrc entry), else offline",
        )
    )
    entity: str | None = setting(Text(optional=True, doc="user or team; null: the account's own", reach=SENDS))
    order: ClassVar[int] = 70
    saves: ClassVar[tuple[str, ...]] = ("_id",)
    tracks: ClassVar[bool] = True
    _run: Any = field(default=None, init=False)
    _id: str | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Start the dashboard run, or continue that of the resumed run."""
        import wandb

        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=_mode(self.mode),  # type: ignore[arg-type]
            name=learner.folder.name if learner.folder else None,
            dir=learner.folder,
            config=dict(learner.run.config),
            group=learner.run.group,
            id=self._id,
            resume="allow" if self._id else None,
            reinit="finish_previous",
        )
        self._id = self._run.id

    def after_epoch(self, learner: Learner) -> None:
        """Log the epoch's row."""
        row = learner.find(Recorder).rows[-1]
        self._run.log(dict(row), step=int(row["epoch"]))

    def after_fit(self, learner: Learner) -> None:
        """Log the images and end the dashboard run."""
        if self._run is None:
            return
        import wandb

        if learner.folder is not None:
            names = filter(None, (BATCH, HISTORY, learner.task.figure_file))
            files = [learner.folder / name for name in names]
            self._run.log({file.stem: wandb.Image(str(file)) for file in files if file.is_file()})
        self._run.finish(exit_code=1 if learner.error else 0)
        self._run = None


def _mode(mode: str) -> str:
    """Return the mode for wandb.init, in place of auto."""
    if mode != "auto":
        return mode
    try:
        account = netrc.netrc().authenticators("api.wandb.ai")
    except (OSError, netrc.NetrcParseError):
        account = None
    return "online" if os.environ.get("WANDB_API_KEY") or account else "offline"
