"""`python -m trainer.evaluate RUN_FOLDER`: score a run's best model on its validation data or on another folder."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor

from augment.check import require_readable
from augment.command import readable_errors
from augment.dataset import Split
from augment.errors import UserError
from augment.folder import scan_split
from augment.plan import build_plan
from augment.sources import load_dataset
from trainer.checkpoint import BEST, load
from trainer.config import Config, parse_config
from trainer.learner import Learner
from trainer.metrics import wilson_interval
from trainer.plots import plot_confusion
from trainer.progress import ProgressBar
from trainer.recorder import Recorder
from trainer.run import CONFIG_FILE, make_loader

_USAGE = """\
python -m trainer.evaluate RUN_FOLDER                          on the run's own validation data
python -m trainer.evaluate RUN_FOLDER DIR                      on DIR/<class>/* or DIR/val/<class>/*
python -m trainer.evaluate RUN_FOLDER data=folder data.root=DIR   on another source's validation data
python -m trainer.evaluate RUN_FOLDER ... fit.device=cpu fit.batch_size=256
"""


@dataclass(frozen=True)
class Score:
    """What an evaluation found.

    Attributes:
        loss: mean over the pictures.
        accuracy: in [0, 1].
        confusion: (classes, classes), rows are targets.
        classes: their names.
    """

    loss: float
    accuracy: float
    confusion: Tensor
    classes: tuple[str, ...]

    @property
    def pictures(self) -> int:
        """Number of pictures."""
        return int(self.confusion.sum())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson 1927): what another set of as many pictures might give."""
        return wilson_interval(int(self.confusion.diagonal().sum()), self.pictures)

    def per_class(self) -> dict[str, tuple[int, int]]:
        """Return for each class how many of its pictures are right, and how many there are."""
        right, total = self.confusion.diagonal().tolist(), self.confusion.sum(dim=1).tolist()
        return {name: (int(r), int(t)) for name, r, t in zip(self.classes, right, total, strict=True)}


def evaluate(run: Path, folder: Path | None = None, overrides: Sequence[str] = ()) -> Score:
    """Score the best model of a run.

    Args:
        run: folder of the run.
        folder: pictures to score it on, see `scan_split`; None: the run's validation data.
        overrides: `key=value` that replace values of the run's configuration.

    Raises:
        UserError: no run, no checkpoint, or pictures that cannot be used.
    """
    config = _run_config(run, overrides)
    best = load(run / BEST)
    classes = tuple(best["classes"])
    split = _own_split(config, classes) if folder is None else scan_split(folder, classes)
    if folder is not None:
        split = require_readable(split, "val", skip_bad=False)
    network = config.model.untrained().build(len(classes), config.aug.size)
    network.load_state_dict(best["model"])
    loader = make_loader(config, build_plan(config.aug, "val"), split)
    learner = Learner(
        network,
        loader,
        loader,
        optimizer=config.fit.make_optimizer,
        epochs=1,
        callbacks=[Recorder(), ProgressBar()],
        device=config.fit.torch_device(),
        bf16=config.fit.precision == "bf16",
        classes=classes,
    )
    learner.validate()
    recorder = learner.find(Recorder)
    assert recorder.confusion is not None
    return Score(recorder.val["val_loss"], recorder.val["val_accuracy"], recorder.confusion, classes)


def _run_config(run: Path, overrides: Sequence[str]) -> Config:
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"{run}: no {CONFIG_FILE} in it. Allowed: the folder of a run.")
    loaded = OmegaConf.load(run / CONFIG_FILE)
    assert isinstance(loaded, DictConfig)
    for override in overrides:
        if override.startswith("data="):  # another source has other settings
            loaded.data = {"source": override.removeprefix("data=")}
    dotted = [override for override in overrides if not override.startswith("data=")]
    merged = OmegaConf.to_container(OmegaConf.merge(loaded, OmegaConf.from_dotlist(dotted)))
    assert isinstance(merged, dict)
    return parse_config({str(key): value for key, value in merged.items()})


def _own_split(config: Config, classes: tuple[str, ...]) -> Split:
    dataset = load_dataset(config.data)
    if dataset.classes != classes:
        raise UserError(
            f"data: its classes are not those of the model any more ({len(dataset.classes)} against {len(classes)}, "
            f"first difference: {_first_difference(dataset.classes, classes)})."
        )
    return dataset.val


def _first_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    return next((f"'{a}' against '{b}'" for a, b in zip(ours, theirs, strict=False) if a != b), "their number")


def _report(score: Score, run: Path, folder: Path | None) -> None:
    low, high = score.interval
    console = Console()
    table = Table("class", "right", "of", "accuracy")
    for name, (right, total) in score.per_class().items():
        table.add_row(name, str(right), str(total), f"{right / total:.4f}" if total else "")
    console.print(table)
    console.print(
        f"val_accuracy {score.accuracy:.4f} (95 % interval {low:.4f} to {high:.4f}, {score.pictures} pictures), "
        f"val_loss {score.loss:.4f}",
        highlight=False,
        soft_wrap=True,
    )
    name = "evaluation" if folder is None else f"evaluation-{folder.resolve().name}"
    values: dict[str, Any] = {
        "data": None if folder is None else str(folder.resolve()),
        "pictures": score.pictures,
        "val_loss": score.loss,
        "val_accuracy": score.accuracy,
        "interval": [low, high],
        "per_class": score.per_class(),
    }
    (run / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")
    plot_confusion(score.confusion.numpy(), score.classes, run / f"{name}.png")
    console.print(f"{run / name}.json, .png", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        sys.stdout.write(_USAGE)
        return 0 if given else 2
    with readable_errors():
        folders = [Path(token) for token in given if "=" not in token]
        overrides = [token.lstrip("+") for token in given if "=" in token]
        if not 1 <= len(folders) <= 2:
            raise UserError(f"{len(folders)} folders are given. Allowed: that of the run, and one with pictures.")
        run, folder = folders[0], folders[1] if len(folders) == 2 else None
        _report(evaluate(run, folder, overrides), run, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
