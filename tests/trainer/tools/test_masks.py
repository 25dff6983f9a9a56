"""Runs of masks from the command line: training, evaluation, predicted masks at the size of the images, exports."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from annotated import mask, photo, turned
from fakes import assert_same, on
from PIL import Image, ImageOps
from runs import BARE

from augment.cli.compose import compose
from augment.data.rasters import Raster
from augment.data.targets.spatial import IGNORE
from augment.params.pixel_format import PixelFormat
from augment.pipeline.geometry.frames import turns
from augment.support.errors import UserError
from trainer.loop.callback import CancelFit
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner
from trainer.predictions.formats import as_json
from trainer.predictions.masks import output_files, palette, upright, whole_mask
from trainer.predictions.predict import predict as predict_images
from trainer.run.best_model import load_best_model
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.tools import evaluate, predict
from trainer.tools.export.command import main as export
from trainer.tools.export.write import predict_source

NAMES = ("background", "left", "right")
QUICK = ["model=unet", "aug.size=32", "fit.batch_size=4", "fit.epochs=1", "fit.device=cpu", "fit.threads=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of two sizes, one of them turned by its EXIF block."""
    folder = tmp_path_factory.mktemp("masks")
    for split, count in (("train", 8), ("val", 5)):
        for number in range(count):
            orientation = 6 if number == 1 else 1
            photo(folder / split / "images" / f"{number}.jpg", 48, 36 + number, orientation=orientation)
            labels = np.full((36 + number, 48), IGNORE)
            labels[4:, 8:24], labels[4:, 24:] = 1, 2
            labels[-9:] = 0
            mask(folder / split / "masks" / f"{number}.png", labels)
    (folder / "names.txt").write_text("\n".join(NAMES))
    train(parse_config(compose(settings(folder))), folder / "run")
    return folder / "run"


def settings(folder: Path) -> list[str]:
    return ["data=masks", f"data.root={folder}", f"data.classes={folder / 'names.txt'}", *QUICK]


def test_a_run_of_masks_is_scored_and_reported(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = evaluate.evaluate(run)
    assert scores.values["val_miou"] == pytest.approx(rows[-1]["val_miou"], abs=1e-9)
    assert list(scores.per_class) == list(NAMES)
    flipped = evaluate.evaluate(run, tta="flip")
    assert flipped.values["val_loss"] != scores.values["val_loss"]
    page = (run / "report.html").read_text()
    assert "IoU of each class in the best epoch" in page
    assert page.count("data:image/jpeg") >= 5


def test_a_folder_is_scored(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    for split in ("train", "val"):
        shutil.copytree(run.parent / split, other / split)
    assert evaluate.main([str(run), f"data.root={other}"]) == 0
    by_root = capsys.readouterr().out.splitlines()[:-1]
    for folder in (other, other / "val"):  # the validation split of a folder, if it has splits
        shutil.rmtree(other / "train", ignore_errors=True)
        assert evaluate.main([str(run), str(folder)]) == 0
        assert capsys.readouterr().out.splitlines()[:-1] == by_root
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(run), str(tmp_path)])
    assert "images" in capsys.readouterr().err


def test_masks_are_predicted_at_the_size_of_the_images(run: Path, tmp_path: Path) -> None:
    images = run.parent / "val"
    found = predict_images(load_best_model(run), [images / "images"], out=tmp_path, overlay=True)
    for prediction in found:
        assert prediction.mask is not None
        with Image.open(prediction.file) as image, Image.open(prediction.mask) as written:
            assert written.mode == "P"
            assert written.size == ImageOps.exif_transpose(image).size
            labels = np.asarray(written)
            assert written.getpalette()[:3] == [0, 0, 0]
        assert labels.max() < len(NAMES)
        shares = {name: (labels == number).mean() for number, name in enumerate(NAMES)}
        assert dict(prediction.classes) == pytest.approx({name: share for name, share in shares.items() if share})
    assert json.loads(as_json(found))[0]["mask"] == str(tmp_path / "0.png")
    with Image.open(tmp_path / "1_overlay.jpg") as drawn:
        assert drawn.width == 320, "a tiny image is enlarged, and the legend is never narrower"
        assert drawn.height > 7 * 48, "a legend below the image, which is 7 times as large"
    trained = load_best_model(run, ["aug.val.center_crop={}"])
    cropped = predict_images(trained, [images / "images" / "0.jpg"], out=tmp_path)
    assert cropped[0].mask is not None
    with Image.open(cropped[0].mask) as written:
        assert (np.asarray(written) == IGNORE).mean() == pytest.approx(0.25)  # 36 of 48 columns are seen


def test_a_link_in_place_of_the_folder_of_masks_is_not_followed(run: Path, tmp_path: Path) -> None:
    linked, image = tmp_path / "run", str(next((run.parent / "val" / "images").iterdir()))
    shutil.copytree(run, linked, ignore=shutil.ignore_patterns("masks"))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (linked / "masks").symlink_to(elsewhere)
    with pytest.raises(SystemExit, match="2"):
        predict.main([str(linked), image])
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("given", [[], ["--out", "mine", "--overlay"]])
def test_the_folder_of_the_masks_is_printed(
    given: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    image = str(next((run.parent / "val" / "images").iterdir()))
    what = f"masks and overlays: mine{chr(10)}" if given else f"masks: {run / 'masks'}{chr(10)}"
    assert predict.main([str(run), image, *given]) == 0
    assert what in capsys.readouterr().out
    assert predict.main([str(run), image, *given, "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert what in printed.err
    json.loads(printed.out)


def test_masks_are_those_of_the_upright_images(run: Path, tmp_path: Path) -> None:
    files = turned(tmp_path)
    predict_images(load_best_model(run), files, out=tmp_path / "masks")
    found = [np.asarray(Image.open(tmp_path / "masks" / file.name)) for file in files]
    assert len(np.unique(found[0])) > 1
    for other in found:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rasters_are_shown_upright_but_frames_begin_at_stored_pixels(tmp_path: Path, orientation: int) -> None:
    """As with `data.channels=1` on photos that an EXIF block turns."""
    stored, file = np.arange(12, dtype=np.uint8).reshape(3, 4), tmp_path / "0.png"
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.fromarray(stored).save(file, exif=exif)
    raster = Raster(file, PixelFormat.of(1, "uint8"))
    shown = raster.read_pixels()[..., 0]
    matrix, size = upright(raster)
    assert size == shown.shape[::-1]
    rows, columns = np.indices(shown.shape)
    x, y, _ = (matrix.numpy() @ np.stack([columns, rows, np.ones_like(rows)]).reshape(3, -1)).round().astype(int)
    np.testing.assert_array_equal(stored[y, x], shown.ravel())
    torch.testing.assert_close(matrix, upright(file)[0])


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_mask_goes_back_through_its_frame(orientation: int) -> None:
    upright = torch.arange(12).reshape(3, 4)
    output = torch.eye(12)[upright].permute(2, 0, 1)
    turn = turns(np.array([orientation]), np.array([[3, 4]]))[0]
    size = (4, 3) if orientation >= 5 else (3, 4)
    stored = whole_mask(output, torch.from_numpy(turn), size)
    y, x = np.indices(size)
    column, row, _ = np.einsum("ij,jhw->ihw", turn, np.stack([x, y, np.ones_like(x)])).astype(int)
    assert (stored == upright.numpy()[row, column]).all()


def test_edges_between_pixels_are_where_logits_cross() -> None:
    output = torch.tensor([[[3.0, -1.0]], [[0.0, 0.0]]])  # the highest changes at 3/4 of the way between two pixels
    frame = torch.diag(torch.tensor([0.1, 0.1, 1.0], dtype=torch.float64))
    labels = whole_mask(output, frame, (1, 20))[0].tolist()
    assert labels == [0] * 8 + [1] * 8 + [IGNORE] * 4


def test_two_images_never_share_a_file(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/b/1.jpg", "c/1.jpg"):
        photo(tmp_path / name, 8, 8)
    inside = [tmp_path / "a/1.jpg", tmp_path / "a/b/1.jpg"]
    assert output_files(inside, [tmp_path / "a"], Path("out")) == {
        inside[0]: Path("out/1.png"),
        inside[1]: Path("out/b/1.png"),
    }
    with pytest.raises(UserError, match=r"would both become out/1\.png\. Predict each of them with another folder\.$"):
        output_files([inside[0], tmp_path / "c/1.jpg"], [], Path("out"))
    assert palette(("sky",))[:3] != palette(("background",))[:3]


def test_an_export_scores_what_evaluate_scores(run: Path, tmp_path: Path) -> None:
    assert export([str(run), "--out", str(tmp_path)]) == 0
    compared = json.loads((tmp_path / "export.json").read_text())
    assert compared["exported"]["val_miou"] == pytest.approx(compared["pytorch"]["val_miou"], abs=0.01)
    assert len(compared["differing"]) <= 1  # a barely trained model is undecided about some pixels
    assert compared["largest"] < 0.01
    image = run.parent / "val" / "images" / "0.jpg"
    command = [sys.executable, str(tmp_path / "predict.py"), str(image)]
    python = subprocess.run(command, capture_output=True, text=True, check=True)
    shares = dict(predict_images(load_best_model(run), [image], out=tmp_path)[0].classes)
    assert python.stdout.split()[1] == max(shares, key=lambda name: shares[name])


def test_padding_has_no_share_in_an_exported_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = np.zeros((1, 2, 32, 32), np.float32)
    logits[:, 1, 8:24, 16:] = 1  # the right half of the image, which fills rows 8 to 23
    session = SimpleNamespace(
        get_modelmeta=lambda: SimpleNamespace(custom_metadata_map={"classes": '["a", "b"]'}),
        get_outputs=lambda: [SimpleNamespace(name="logits")],
        run=lambda *_: [logits],
    )
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda _: session)
    (tmp_path / "predict.py").write_text(predict_source(inside=True, masks=True, padded=True))
    for size, orientation in ((80, 40), 1), ((40, 80), 6):
        image = photo(tmp_path / f"{orientation}.jpg", *size, orientation=orientation)
        monkeypatch.setattr(sys, "argv", ["predict.py", str(image)])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(tmp_path / "predict.py"), run_name="__main__")
        assert capsys.readouterr().out == f"{image}  a 0.5  b 0.5\n"


def test_a_run_that_was_stopped_within_an_epoch_resumes_exactly(run: Path, tmp_path: Path) -> None:
    def stop(learner: Learner) -> None:
        if learner.training and learner.progress.batches_done == 4:
            raise CancelFit

    given = [*settings(run.parent), "fit.epochs=2", "fit.batch_size=3", "fit.loss=ce+dice", "fit.precision=bf16"]
    given += ["+aug.train.flip={}", "+aug.train.rotate={}", "++callbacks.ema={}", *BARE]
    train(parse_config(compose(given)), tmp_path / "straight")
    train(parse_config(compose(given)), tmp_path / "stopped", callbacks=[on("after_step", stop)])
    train(parse_config(compose([*given, f"fit.resume={tmp_path / 'stopped'}"])), tmp_path / "resumed")
    straight, stopped, resumed = (load(tmp_path / name / LAST, FitState) for name in ("straight", "stopped", "resumed"))
    assert stopped.position == (1, 1)
    for part in ("model", "optimizer", "loader", "random"):
        assert_same(getattr(straight, part), getattr(resumed, part), part)
    ours, theirs = (load(tmp_path / name / BEST, BestModel).samples for name in ("straight", "resumed"))
    assert_same(ours, theirs)
