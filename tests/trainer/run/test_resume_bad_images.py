"""A run during which images become unreadable is resumed exactly: its rows equal the rows of an uninterrupted run."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import on
from photos import draw_photo
from PIL import Image
from rich.console import Console
from runs import BARE, rows_of

from augment.cli.compose import compose
from augment.data.sources import LOADED
from augment.pipeline.loader import Loader
from augment.support.errors import UserError
from trainer.loop.learner import Learner
from trainer.run.config.checks import check_config, check_resume
from trainer.run.config.schema import LEFT_OUT_FILE, left_out_of, parse_config
from trainer.run.train import train

FEW = (*BARE, "data.skip_bad=true")
SMALL = ("aug.size=16", "fit.batch_size=3", "fit.device=cpu", "fit.threads=1", "fit.epochs=3", "aug.prefetch=1")
RANDOM = ("++aug.train.random_resized_crop={}", "++aug.train.flip={}", "++aug.train.rotate={}")

Hook = Callable[[Learner], None]


def put_photos(root: Path) -> Path:
    """Two classes, of twelve images to train on and six to validate on; two are bad from the beginning."""
    for split, count in (("train", 12), ("val", 6)):
        for name in ("ant", "bee"):
            (root / split / name).mkdir(parents=True)
            for seed in range(count):
                Image.fromarray(draw_photo(24, 24, seed)).save(root / split / name / f"{seed:02}.png")
    for file in ("train/ant/03.png", "val/bee/00.png"):
        (root / file).write_bytes(b"words")
    return root


def start(root: Path, folder: Path, hook: Hook, *overrides: str) -> list[dict[str, Any]]:
    """Run as a process of its own would; return the rows."""
    LOADED.clear()
    config = parse_config(compose(["data=folder", f"data.root={root}", *FEW, *SMALL, *RANDOM, *overrides]))
    check_config(config)
    check_resume(config)
    config = replace(config, callbacks=(*config.callbacks, lambda: on("after_batch", hook)))
    train(config, folder, console=Console(quiet=True))
    return rows_of(folder)


def nothing(_: Learner) -> None:
    pass


def epoch_of(root: Path, folder: Path, number: int, *overrides: str) -> list[Path]:
    """The images of an epoch of training, in order."""
    seen: list[Path] = []

    def see(learner: Learner) -> None:
        loader = learner.train_loader
        assert isinstance(loader, Loader)
        if learner.training and learner.progress.epoch == number:
            seen.extend(Path(str(loader.split.files[index])) for index in learner.batch.indices.tolist())

    start(root, folder, see, *overrides)
    return seen


def spoil(*files: Path) -> None:
    for file in files:
        file.unlink()  # DALI may hold it open
        file.write_bytes(b"words")


def test_rows_are_those_of_a_run_that_was_not_interrupted(tmp_path: Path) -> None:
    more = ("data.fraction=0.8", "data.balance=oversample")
    last = epoch_of(put_photos(tmp_path / "known"), tmp_path / "look", 1, *more)[-1]

    def run(name: str, stop: tuple[int, int] | None = None) -> list[dict[str, Any]]:
        """Run, make two images unreadable early in an epoch in whose last batch one is read, and stop and resume."""
        root = put_photos(tmp_path / f"photos {name}")
        bad = [root / last.relative_to(tmp_path / "known"), root / "val/bee/05.png"]

        def hook(learner: Learner) -> None:
            at = learner.progress.epoch, learner.progress.position.batch
            if learner.training and at == (1, 1):
                spoil(*bad)
            if learner.training and at == stop:
                signal.raise_signal(signal.SIGTERM)

        rows = start(root, tmp_path / name, hook, *more)
        if stop is None:
            return rows
        rows = start(root, tmp_path / f"{name} resumed", nothing, *more, f"fit.resume={tmp_path / name}")
        assert left_out_of(tmp_path / f"{name} resumed") == left_out_of(tmp_path / name)
        return rows

    whole = run("whole")
    assert len(whole) == 3
    assert run("before it is read", (1, 3)) == whole
    assert run("after it was replaced", (2, 2)) == whole


def test_a_run_is_resumed_with_what_was_left_out_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = put_photos(tmp_path / "photos")
    whole = start(root, tmp_path / "whole", nothing)
    start(root, tmp_path / "cut", lambda _: signal.raise_signal(signal.SIGTERM))
    Image.fromarray(draw_photo(24, 24, 3)).save(root / "train/ant/03.png")  # repaired meanwhile
    assert start(root, tmp_path / "resumed", nothing, f"fit.resume={tmp_path / 'cut'}") == whole

    spoil(root / "train/ant/05.png")
    with pytest.raises(UserError, match=r"an image became unreadable: \S+05.png"):
        start(root, tmp_path / "none", nothing, f"fit.resume={tmp_path / 'cut'}", "data.max_bad=0")
    caplog.clear()
    assert len(start(root, tmp_path / "again", nothing, f"fit.resume={tmp_path / 'cut'}")) == 3
    assert f"{root}/train/ant/05.png is not an image that DALI decodes" in caplog.text
    assert "but the resumed run had read it. Another image replaces it" in caplog.text

    (tmp_path / "cut" / LEFT_OUT_FILE).write_text("[1, 2]")
    with pytest.raises(UserError, match=r"left_out.json is damaged, or no run wrote it"):
        start(root, tmp_path / "broken", nothing, f"fit.resume={tmp_path / 'cut'}")
