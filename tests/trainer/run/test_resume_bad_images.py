"""A run during which an image becomes unreadable ends. It resumes only with the same training images."""

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
from augment.support.errors import UserError
from trainer.loop.learner import Learner
from trainer.run.config.checks import check_config, check_resume
from trainer.run.config.schema import parse_config
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
                draw(root / split / name / f"{seed:02}.png")
    for file in ("train/ant/03.png", "val/bee/00.png"):
        spoil(root / file)
    return root


def draw(file: Path) -> None:
    Image.fromarray(draw_photo(24, 24, int(file.stem))).save(file)


def spoil(file: Path) -> None:
    file.unlink()  # DALI may hold it open
    file.write_bytes(b"words")


def start(root: Path, folder: Path, hook: Hook = lambda _: None, *overrides: str) -> list[dict[str, Any]]:
    """Run as a process of its own would; return the rows."""
    LOADED.clear()
    config = parse_config(compose(["data=folder", f"data.root={root}", *FEW, *SMALL, *RANDOM, *overrides]))
    check_config(config)
    check_resume(config)
    config = replace(config, callbacks=(*config.callbacks, lambda: on("after_batch", hook)))
    train(config, folder, console=Console(quiet=True))
    return rows_of(folder)


def test_a_run_whose_image_becomes_unreadable_ends_and_resumes_with_the_same_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, run = put_photos(tmp_path / "photos"), tmp_path / "run"
    whole = start(root, tmp_path / "whole")
    lost, unused = root / "train/ant/05.png", root / "train/ant/03.png"

    def hook(learner: Learner) -> None:
        if learner.training and learner.progress.epoch == 1:
            spoil(lost)

    with pytest.raises(UserError, match=rf"^data: an image became unreadable: {lost} is not an image .*\. Repair it "
                       r"to resume the run\. .* data\.skip_bad=true\. fit\.resume=\S+run continues from"):  # fmt: skip
        start(root, run, hook)
    resumed = f"fit.resume={run}"
    with pytest.raises(UserError, match=r"^data differs .* leaves out ant/05\.png .*\. Resume with the images of"):
        start(root, tmp_path / "other", lambda _: None, resumed)
    draw(lost)
    draw(unused)
    with pytest.raises(UserError, match=r"^data differs from the saved run: .* leaves out ant/03\.png \(data\.skip"):
        start(root, tmp_path / "other", lambda _: None, resumed)
    spoil(unused)
    assert start(root, tmp_path / "resumed", lambda _: None, resumed) == whole

    spoil(root / "val/bee/05.png")
    caplog.clear()
    start(root, tmp_path / "longer", lambda _: None, resumed)
    assert "data: changed since the saved run, so old and new scores cannot be compared" in caplog.text
    assert f"{root}/val/bee/05.png is not an image that DALI decodes" in caplog.text
