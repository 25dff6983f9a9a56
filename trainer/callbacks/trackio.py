"""Trackio: a local dashboard without an account, or one on Hugging Face."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from augment.params import SENDS, Text, setting
from trainer.callbacks.registry import configurable
from trainer.callbacks.tracker import TrackedRun
from trainer.callbacks.wandb import DashboardTracker

log = logging.getLogger(__name__)


@configurable
@dataclass(eq=False)
class Trackio(DashboardTracker):
    """Sends the run to Trackio: into the local store, where `trackio show` finds it, or to a Space."""

    project: str = setting(Text(default="dali-trainer", doc="project on the dashboard", reach=SENDS))
    space_id: str | None = setting(
        Text(optional=True, doc="Space on Hugging Face; null: TRACKIO_SPACE_ID, otherwise the local store", reach=SENDS)
    )
    package: ClassVar[str] = "trackio"
    saves: ClassVar[tuple[str, ...]] = ("_id", "_name")
    _name: str = field(default="", init=False)

    def start(self, run: TrackedRun) -> int | None:
        """Start a run, or continue the resumed one."""
        # Trackio drops values that are logged while another thread imports Matplotlib.
        import matplotlib.figure  # noqa: F401
        import trackio

        for name in ("trackio", "trackio.run", "trackio.utils"):
            vars(import_module(name))["print"] = _log  # no lines of its own in the table of epochs

        # A resumed run keeps its name, which a checkpoint holds that may come from a stranger.
        name = str(self._name) if run.resumed and not run.named else run.name
        self._name = re.sub(r"[/\\\x00-\x1f]", "_", name).strip(". ")[:100] or run.id  # also that of a folder of images
        self._run = trackio.init(
            project=self.project,
            name=self._name,
            group=run.group,
            space_id=self.space_id,
            config={"tags": list(run.tags), **run.config},
            embed=False,
        )
        # Trackio finds a run to continue by its name, which other runs may have, too.
        self._run.id = run.id
        return None if run.resumed else -1

    def shown(self, cell: str | float) -> str | float:
        """Escape texts, which are Markdown."""
        return escape(cell) if isinstance(cell, str) else cell

    def reached(self, scores: Mapping[str, float], report: Path | None) -> None:
        """Log the scores of the best and the last epoch, and the path of the report."""
        self._run.log({**scores, "report": str(report or "")})

    def finish(self, status: str) -> None:
        """End the run, with its status as a last value."""
        self._run.log({"status": status})
        self._run.finish()


def _log(*texts: object, **_: object) -> None:
    log.info("%s", " ".join(map(str, texts)))
