"""Weights & Biases: one dashboard run for each run. The package is imported only where the callback is used."""

import netrc
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from augment.params import Choice, Text, setting
from trainer.callback import Callback
from trainer.callbacks import configurable
from trainer.learner import Learner
from trainer.pictures import BATCH, CONFUSION, HISTORY, LABELS, SCATTER
from trainer.recorder import Recorder


@configurable
@dataclass(eq=False)
class Wandb(Callback):
    """Logs each epoch's metrics, the configuration and the pictures to Weights & Biases."""

    project: str = setting(Text(default="dali-trainer", doc="project on the dashboard"))
    mode: str = setting(
        Choice(
            default="auto",
            options=("auto", "online", "offline", "disabled"),
            doc="auto: online with an account (WANDB_API_KEY or a netrc entry), else offline",
        )
    )
    entity: str | None = setting(Text(optional=True, doc="user or team; null: the account's own"))
    order: ClassVar[int] = 70
    config: dict[str, Any] = field(default_factory=dict, init=False)
    group: str | None = field(default=None, init=False)
    _run: Any = field(default=None, init=False)
    _id: str | None = field(default=None, init=False)

    def before_fit(self, learner: Learner) -> None:
        """Start the dashboard run, or go on with that of the resumed run."""
        import wandb

        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=_mode(self.mode),  # type: ignore[arg-type]
            name=learner.folder.name if learner.folder else None,
            dir=learner.folder,
            config=self.config,
            group=self.group,
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
        """Log the pictures and end the dashboard run."""
        if self._run is None:
            return
        import wandb

        if learner.folder is not None:
            files = [learner.folder / name for name in (BATCH, HISTORY, CONFUSION, LABELS, SCATTER)]
            self._run.log({file.stem: wandb.Image(str(file)) for file in files if file.is_file()})
        self._run.finish(exit_code=1 if learner.error else 0)
        self._run = None

    def state_dict(self) -> dict[str, Any]:
        """Return the dashboard run's id."""
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that dashboard run."""
        self._id = state.get("id")


def _mode(mode: str) -> str:
    if mode != "auto":
        return mode
    return "online" if os.environ.get("WANDB_API_KEY") or _has_netrc_entry() else "offline"


def _has_netrc_entry() -> bool:
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
