"""Trackio: a local dashboard without an account, or one on Hugging Face."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from augment.params import SENDS, Flag, Text, setting
from trainer.callbacks.registry import configurable
from trainer.callbacks.tracker import MODEL, Cell, TrackedRun, Tracker

log = logging.getLogger(__name__)


@configurable
@dataclass(eq=False)
class Trackio(Tracker):
    """Sends the run to Trackio: into the local store, where `trackio show` finds it, or to a Space."""

    project: str = setting(Text(default="dali-trainer", doc="project on the dashboard", reach=SENDS))
    space_id: str | None = setting(
        Text(optional=True, doc="Space on Hugging Face; null: TRACKIO_SPACE_ID, otherwise the local store", reach=SENDS)
    )
    checkpoint: bool = setting(Flag(default=False, doc="also send best.pt at the end, as an artifact"))
    package: ClassVar[str] = "trackio"
    saves: ClassVar[tuple[str, ...]] = ("_id", "_name")
    _name: str = field(default="", init=False)
    _run: Any = field(default=None, init=False)

    def start(self, run: TrackedRun) -> int | None:
        """Start a run, or continue the resumed one."""
        # Trackio drops values that are logged while another thread imports Matplotlib.
        import matplotlib.figure  # noqa: F401
        import trackio

        for name in ("trackio", "trackio.run", "trackio.utils"):
            vars(import_module(name))["print"] = _log  # no lines of its own in the table of epochs

        # A resumed run keeps its name, which a checkpoint holds that may come from a stranger.
        name = str(self._name) if run.resumed and not run.named else run.name
        self._name = _folder_name(name) or run.id
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

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        """Log values over the batches."""
        self._run.log(dict(values), step=step)

    def image(self, name: str, file: Path, step: int) -> None:
        """Log a PNG."""
        import trackio

        self._run.log({name: trackio.Image(str(file))}, step=step)

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """Log a table with its images."""
        import trackio

        def shown(cell: Cell) -> object:
            if isinstance(cell, Image.Image):
                return trackio.Image(cell)
            return escape(cell) if isinstance(cell, str) else cell  # texts are Markdown

        data = [[shown(cell) for cell in row] for row in rows]
        self._run.log({name: trackio.Table(columns=list(head), data=data)}, step=step)

    def artifact(self, file: Path) -> None:
        """Log a checkpoint as an artifact of the run."""
        self._run.log_artifact(str(file), name=f"{MODEL}-{self._run.id}", type=MODEL, aliases=["best"])

    def finish(self, status: str) -> None:
        """End the run, with its status as a last value."""
        self._run.log({"status": status})
        self._run.finish()


def _log(*texts: object, **_: object) -> None:
    log.info("%s", " ".join(map(str, texts)))


def _folder_name(name: str) -> str:
    """Return a name that is safe as that of a folder, which Trackio makes of it for images."""
    return re.sub(r"[/\\\x00-\x1f]", "_", name).strip(". ")[:100]
