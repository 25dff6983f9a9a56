"""`load_model` predicts what `python -m trainer predict` predicts, for every task, from paths and from memory."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import draw_photo
from PIL import Image
from rich.console import Console

from augment.cli.compose import compose
from augment.data.dataset import DATA_DIR
from augment.support.errors import UserError
from trainer import load_model
from trainer.predictions.formats import as_json
from trainer.run.config.schema import parse_config
from trainer.run.folder.facts import IDS_FILE
from trainer.run.train import train
from trainer.tools.predict import main

TASKS = {
    "classify": ["data=sample"],
    "multilabel": ["data=sample_multilabel"],
    "regress": ["data=filelist", "data.targets=[red,green]"],
    "segment": ["data=sample_masks", "model=unet"],
    "detect": ["data=sample_boxes", "model=detector"],
    "keypoints": ["data=sample_points"],
}
QUICK = [
    *("aug.size=32", "aug.train.resize={}", "fit.epochs=1", "fit.limit_batches=1", "fit.batch_size=4"),
    *(
        "fit.device=cpu",
        "fit.threads=1",
        "callbacks.plots=null",
        "callbacks.report=null",
        "callbacks.progress_bar=null",
    ),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.fromarray(draw_photo(50 + number, 40, number)).save(path)
    return paths


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, sample_set: Path) -> Iterator[Path]:
    """Return a folder, in which few images are generated."""
    root = tmp_path_factory.mktemp("runs")
    (root / DATA_DIR).parent.mkdir()
    (root / DATA_DIR).symlink_to(sample_set)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("augment.data.generated.sample.SCENES", {"train": 8, "val": 8})
        for name in ("TRAIN", "VAL"):
            patch.setattr(f"augment.data.generated.annotated.{name}", 8)
        yield root


@pytest.fixture(scope="module", params=TASKS)
def run(request: pytest.FixtureRequest, images: list[Path], work: Path) -> Path:
    """Return the folder of a run of one batch; its scores do not matter."""
    given, folder = list(TASKS[request.param]), work / request.param
    if request.param == "detect":
        pytest.importorskip("faster_coco_eval")
    if request.param == "regress":
        lines = ["path,red,green", *(f"{path},{number}.5,{number}" for number, path in enumerate(images))]
        (work / "numbers.csv").write_text("\n".join(lines) + "\n")
        given += [f"data.train={work / 'numbers.csv'}", f"data.val={work / 'numbers.csv'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        train(parse_config(compose([*given, *QUICK])), folder, console=Console(quiet=True))
    return folder


def test_predictions_equal_those_of_the_command_line(
    run: Path, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(run, device="cpu")
    found = model.predict(images)
    assert [prediction.file for prediction in found] == images
    capsys.readouterr()
    assert main([str(run), *map(str, images), "--json", "-", "fit.device=cpu"]) == 0
    printed = json.loads(capsys.readouterr().out)
    if found[0].labels is not None:
        for prediction, row in zip(found, printed, strict=True):
            assert np.array_equal(prediction.labels, np.asarray(Image.open(row.pop("mask"))))
            assert [[name, share] for name, share in prediction.classes] == [[*of.values()] for of in row["classes"]]
        return
    ids = json.loads((run / IDS_FILE).read_text()) if (run / IDS_FILE).exists() else None
    assert json.loads(as_json(found, ids)) == printed


def test_images_in_memory_give_what_their_files_give(run: Path, images: list[Path]) -> None:
    model = load_model(run, device="cpu")
    expected = [vars(prediction) for prediction in model.predict(images)]
    pixels = [np.asarray(Image.open(path)) for path in images]
    for given in (
        pixels,
        list(map(Image.open, images)),
        [path.read_bytes() for path in images],
        [images[0], *pixels[1:]],
    ):
        for number, (prediction, like) in enumerate(zip(model.predict(given), expected, strict=True)):
            assert str(prediction.file) in (f"images[{number}]", str(images[number]))
            for name, value in vars(prediction).items():
                if name == "labels":
                    assert np.array_equal(value, like[name])
                elif name != "file":
                    assert value == like[name], name


def test_the_model_and_its_preprocessing_give_the_outputs(finished_run: Path, images: list[Path]) -> None:
    model = load_model(str(finished_run), device="cpu")
    with torch.inference_mode():
        shares = model.model(model.preprocess(images)).softmax(dim=1)
    for prediction, row in zip(model.predict(images, top=3), shares, strict=True):
        assert dict(prediction.classes) == pytest.approx(dict(zip(model.classes, row.tolist(), strict=True)), abs=1e-5)
    (one,) = model.predict(images[0])
    assert one.classes == model.predict([images[0]])[0].classes
    assert [p.file for p in model.predict(images[0].parent)] == images
    assert "3 outputs" in repr(model)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (np.zeros((4, 4), np.uint8), "np.stack"),
        ([np.zeros((4, 4, 3), np.float32)], "images[0]: float32 (4, 4, 3) is not allowed. Remove ToTensor and"),
        ([np.zeros((4, 4, 3), int)], "Allowed: a uint8 array or tensor (height, width, 3), a PIL image, a path or"),
        ([b"no image"], "images[0]"),
        ("nowhere.png", "nowhere.png"),
        (None, "images[0]: NoneType is not allowed."),  # such as from cv2.imread
        (3, "images[0]: int is not allowed. Allowed: a uint8 array or tensor (height, width, 3), a PIL image, a path"),
        (np.array(3), "images[0]"),
        ([], "no images"),
    ],
)
def test_what_is_no_image_is_named(given: object, key: str, finished_run: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_model(finished_run, device="cpu").predict(given)
    assert key in str(caught.value)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_model(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_preprocessing_does_not_wait_for_a_pipe(finished_run: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "cat.jpg")
    with pytest.raises(OSError, match="it is a named pipe"):
        load_model(str(finished_run), device="cpu").preprocess(pipe)
