"""The TensorBoard tracker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from omegaconf import OmegaConf
from PIL import Image

from augment.support.nested import leaves
from augment.support.untrusted_files import unlinked_folder
from trainer.callbacks.tracker import TrackedRun, Tracker
from trainer.loop.callback import configurable

FOLDER = "tensorboard"


@configurable
@dataclass(eq=False)
class Tensorboard(Tracker):
    """Writes event files into the run's folder. `tensorboard --logdir outputs` shows all runs."""

    package: ClassVar[str] = "tensorboard"
    replays: ClassVar[bool] = True
    _writer: Any = field(default=None, init=False)
    _settings: dict[str, Any] = field(default_factory=dict, init=False)

    def start(self, run: TrackedRun) -> None:
        """Start an event file, and delete older ones in the folder, because a resumed run sends all values again."""
        from torch.utils.tensorboard import SummaryWriter

        if run.folder is None:
            raise ValueError("the learner has no folder")
        folder = unlinked_folder(run.folder / FOLDER)
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._writer = SummaryWriter(str(folder))
        labels = {"name": run.name, "group": run.group or "", "tags": ", ".join(run.tags)}
        self._text("run", "".join(f"{name}: {_plain(text)}\n\n" for name, text in labels.items() if text))
        found = {k: v for k, v in leaves(run.config) if not k.startswith(("callbacks.", "run.")) and v is not None}
        self._settings = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in found.items()}
        config = OmegaConf.to_yaml(dict(run.config))
        self._text("config", "".join(f"    {line}\n" for line in config.splitlines()))  # as code in Markdown

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        """Write epoch values with the epoch as step, and running values with the number of batches."""
        for name, value in values.items():
            tag = name if epoch is None or name.startswith("best/") else f"epoch/{name}"
            self._writer.add_scalar(tag, value, step if epoch is None else epoch)
        self._writer.flush()

    def image(self, name: str, file: Path, step: int) -> None:
        with Image.open(file) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")

    def reached(self, scores: Mapping[str, float], report: Path | None) -> None:
        """Write the settings and the final scores, for TensorBoard's HPARAMS tab."""
        from torch.utils.tensorboard.summary import hparams

        # The best score was already sent. Sending it here would add a point at epoch 0 to its curve.
        self.log({name: value for name, value in scores.items() if name not in self._of_epoch}, 0)
        for summary in hparams(self._settings, dict(scores)):  # type: ignore[no-untyped-call]
            self._writer.file_writer.add_summary(summary)
        self._text("report", _plain(report or ""))

    def finish(self, status: str) -> None:
        self._text("status", status)
        self._writer.close()

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(name, text, 0)


def _plain(value: object) -> str:
    """Escape a value for Markdown."""
    text = escape(str(value).replace("\n", " "))
    return "".join(f"&#{ord(c)};" if c in "\\`*_{}[]()#+-.!|~" else c for c in text)
