"""The Weights & Biases tracker."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from augment.params import SENDS, Choice, Flag, Text, setting
from augment.support.errors import UserError
from augment.support.lazy_torch import nn
from augment.support.untrusted_files import unlinked_folder
from trainer.callbacks.tracker import MODEL, Cell, TrackedRun, Tracker
from trainer.loop.callback import configurable
from trainer.loop.ranks import current
from trainer.tasks.registry import smaller_is_better

_PROJECT = "dali-trainer"

_NAME, _TAG = 128, 64  # maximum lengths of names and tags


@configurable
@dataclass(eq=False)
class Wandb(Tracker):
    """Sends the run to Weights & Biases. WANDB_* environment variables are the defaults of settings."""

    project: str | None = setting(
        Text(optional=True, doc="project on the dashboard. Default: WANDB_PROJECT, otherwise dali-trainer", reach=SENDS)
    )
    mode: str = setting(
        Choice(
            default="auto",
            options=("auto", "online", "offline", "disabled"),
            doc="how to send. auto: WANDB_MODE, otherwise online if there is an account (WANDB_API_KEY or a netrc "
            "entry), otherwise offline",
        )
    )
    entity: str | None = setting(
        Text(optional=True, doc="user or team. Default: WANDB_ENTITY, otherwise the account's default", reach=SENDS)
    )
    checkpoint: bool = setting(Flag(default=False, doc="send best.pt at the end, as an artifact"))
    package: ClassVar[str] = "wandb"
    _run: Any = field(default=None, init=False)

    def check(self, model: nn.Module) -> None:
        """Check that the package is installed, and that online mode has an account."""
        super().check(model)
        key, mode = f"{self._key}.mode", self.mode
        if mode == "auto":
            key, mode = "WANDB_MODE", os.environ.get("WANDB_MODE", "")
        if mode == "online" and current().is_main and not _has_account():
            raise UserError(
                f"{key}=online: this machine has no Weights & Biases account. Run `wandb login`, or set WANDB_API_KEY. "
                f"Or set {key}=offline, and run `wandb sync` later."
            )

    def start(self, run: TrackedRun) -> int | None:
        """Start a run in wandb. A resumed run continues its old run in wandb."""
        import wandb

        given, mode = os.environ, None if self.mode == "auto" else self.mode
        if self.mode == "auto" and not given.get("WANDB_MODE"):
            mode = "online" if _has_account() else "offline"
        # The agent of a Weights & Biases sweep sets WANDB_RUN_ID for one run. The jobs of our own sweep would share
        # this id, so each job uses its own id.
        own_id = not given.get("WANDB_RUN_ID") or run.group is not None
        # A resumed run keeps its name, because the name of its new folder means nothing.
        named = run.named or not (given.get("WANDB_NAME") or run.resumed)
        if run.folder is not None:
            unlinked_folder(run.folder / "wandb")
        self._run = wandb.init(
            project=self.project or (None if given.get("WANDB_PROJECT") else _PROJECT),
            entity=self.entity,
            mode=mode,  # type: ignore[arg-type]
            name=run.name[:_NAME] if named else None,
            tags=list(dict.fromkeys(tag[:_TAG] for tag in run.tags)) or None,
            dir=None if given.get("WANDB_DIR") else run.folder,
            config=dict(run.config),
            group=None if given.get("WANDB_RUN_GROUP") or run.group is None else run.group[:_NAME],
            id=run.id if own_id else None,
            resume="allow" if own_id and run.resumed else None,
            reinit="create_new",  # an earlier run of this process may still be sending
        )
        return None if run.resumed else -1

    def accepted(self, name: str) -> str:
        """Return a name without pattern characters, which wandb rejects in names of metrics."""
        return re.sub(r"[*\\]", "_", name)

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        """Log running values by batch, and values of epochs by epoch. The summary has the best value of each metric."""
        for name in values if epoch is not None else ():
            goal = None
            if name.startswith(("train_", "val_")):
                goal = "min,last" if smaller_is_better(name) else "max,last"
            self._run.define_metric(_grouped(name), step_metric="epoch", summary=goal)
        self._run.log({_grouped(name): value for name, value in values.items()}, step=step)

    def image(self, name: str, file: Path, step: int) -> None:
        import wandb

        self._run.log({name: wandb.Image(str(file))}, step=step)

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        import wandb

        data = [[wandb.Image(cell) if isinstance(cell, Image.Image) else cell for cell in row] for row in rows]
        self._run.log({name: wandb.Table(columns=list(head), data=data, allow_mixed_types=True)}, step=step)

    def artifact(self, file: Path) -> None:
        self._run.log_artifact(str(file), name=f"{MODEL}-{self._run.id}", type=MODEL, aliases=["best"])

    def reached(self, scores: Mapping[str, float], report: Path | None) -> None:
        """Write the final scores and the report's path into the summary of the run."""
        self._run.summary.update({**scores, "report": str(report or "")})

    def finish(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "finished" else 1)


def _grouped(name: str) -> str:
    """Return a name with the prefix by which the dashboard groups metrics: val/accuracy instead of val_accuracy."""
    return re.sub("^(train|val)_", r"\1/", name)


def _has_account() -> bool:
    """Return whether the package finds an API key without a prompt."""
    import wandb
    from requests.utils import get_netrc_auth  # a dependency of wandb

    given = map(os.environ.get, ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    return any(given) or any(map(get_netrc_auth, (wandb.Settings().base_url, "https://api.wandb.ai")))
