"""Trained models of 16-bit images with four channels: predicting, scoring, exporting, and starting other runs."""

import json
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray
from PIL import Image
from runs import BARE, QUIET, draw_classes, small_config
from scripts import PACKAGES, imports_of

from augment import load_recipe
from augment.params import Size
from augment.params.pixel_format import PixelFormat
from augment.pipeline.serving.torch_crops import Crop
from augment.pipeline.transform import Transform
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from augment.tools.export import main as export_transform
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.models.torchvision_models import Detector
from trainer.predictions.predict import predict
from trainer.predictions.trained_model import load_model
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.run.config.checks import check_config
from trainer.run.config.schema import Config
from trainer.run.train import train
from trainer.tasks.registry import task_named
from trainer.tools.evaluate import evaluate
from trainer.tools.export.command import main as export
from trainer.tools.predict import main as predict_command

NAMES = ("dark", "light")
PIXELS = ("data.range=[500,30000]", "data.nodata=65535")  # some pixels are beyond the range


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes whose classes differ only in the last channel."""
    root, draw = tmp_path_factory.mktemp("bands"), np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for label, name in enumerate(NAMES):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                height, width = draw.integers(20, 40, 2)
                image = draw.integers(0, 20000, (height, width, 4)).astype(np.uint16)
                image[..., 3] += 14000 * label
                image[:4, :4] = 65535
                np.save(root / split / name / f"{number}.npy", image)
    return root


@pytest.fixture(scope="module")
def run(bands: Path) -> Path:
    train(small_config(bands, *PIXELS, *BARE, "fit.epochs=6", "fit.batch_size=4"), bands / "run", console=QUIET)
    return bands / "run"


def probabilities(found: Any) -> dict[str, float]:
    return dict(found.classes)


def arrays(folder: Path) -> list[NDArray[Any]]:
    return [np.load(file) for file in sorted(folder.glob("*/*.npy"))]


def same_in_other_files(file: Path, folder: Path) -> list[Path]:
    """Write an image as TIFF with channels last or first, as .npz, and as .npy with big-endian numbers."""
    image, folder = np.load(file), folder / file.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(folder / f"{file.stem}.tif", image, compression="deflate")
    tifffile.imwrite(folder / f"{file.stem}_first.tif", image.transpose(2, 0, 1), photometric="minisblack")
    np.savez(folder / f"{file.stem}.npz", image)
    np.save(folder / f"{file.stem}_big.npy", image.astype(">u2"))
    return sorted(folder.glob(f"{file.stem}*"))


def test_the_best_model_has_the_format_and_the_mean_of_its_run(run: Path) -> None:
    trained, plan = load_best_model(run, data=False), (run / "plan.txt").read_text()
    pixels = trained.config.aug.pixels
    assert (pixels.channels, pixels.dtype, pixels.low, pixels.nodata) == (4, "uint16", (500,) * 4, 65535)
    assert str(build_plan(trained.config.aug, "val")) in plan
    given = load_best_model(run, ["aug.mean=[0.1,0.2,0.3,0.4]"], data=False).config.aug
    assert build_plan(given, "val").mean == (0.1, 0.2, 0.3, 0.4)


# --- predicting ---


def test_files_and_arrays_give_the_same_predictions(
    run: Path, bands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, files = load_model(run, device="cpu"), sorted((bands / "val").glob("*/*.npy"))
    expected = [probabilities(found) for found in model.predict(bands / "val")]
    assert [max(shares, key=shares.__getitem__) for shares in expected] == [file.parent.name for file in files]
    found = model.predict([*arrays(bands / "val"), files[0].read_bytes(), *same_in_other_files(files[0], tmp_path)])
    assert [*map(probabilities, found)] == [pytest.approx(one) for one in [*expected, *[expected[0]] * 5]]
    prepared = model.preprocess(files)
    assert prepared.shape == (6, 4, 16, 16)
    assert torch.equal(model.preprocess(arrays(bands / "val")), prepared)
    logits = model.model(prepared).softmax(1).tolist()
    assert [dict(zip(NAMES, shares, strict=True)) for shares in logits] == [pytest.approx(one) for one in expected]
    arguments = ["--json", "-", "--overlay", "--out", str(tmp_path / "out")]
    assert predict_command([str(run), str(bands / "val"), *arguments]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 6
    assert len(list((tmp_path / "out").glob("*/*.jpg"))) == 6


def test_images_of_another_format_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "three.npy", np.zeros((9, 9, 3), np.uint16))
    Image.new("RGB", (9, 9)).save(tmp_path / "photo.png")
    for name in ("three.npy", "photo.png"):
        with pytest.raises(SystemExit, match="2"):
            predict_command([str(run), str(tmp_path / name)])
        assert name in capsys.readouterr().err
    model = load_model(run, device="cpu")
    for image in (np.zeros((9, 9, 3), np.uint16), np.zeros((9, 9, 4), np.uint8), Image.new("RGB", (9, 9))):
        for call in (model.predict, model.preprocess):
            with pytest.raises(UserError, match=r"images\[0\]: .* 4 channels of uint16"):
                call([image])


def test_a_folder_scores_like_the_validation_data(run: Path, bands: Path) -> None:
    own, folder = evaluate(run), evaluate(run, bands / "val")
    with pytest.raises(UserError, match=r"data\.nodata"):  # the model stores its format
        evaluate(run, overrides=["data.nodata=3"])
    assert own.values["val_accuracy"] == 1
    assert folder.values["val_loss"] == pytest.approx(own.values["val_loss"])


# --- exporting ---


FORMATS = [
    PixelFormat.of(1),
    PixelFormat.of(4),
    PixelFormat.of(4, "uint16", range=(500, 30000)),
    PixelFormat.of(10, "int16", range=(-20000, 30000)),
    PixelFormat.of(2, "float32"),
]


@pytest.mark.parametrize("crop", ["resize", "center_crop", "letterbox"])
@pytest.mark.parametrize("pixels", FORMATS, ids=str)
def test_the_graph_computes_what_validation_does(pixels: PixelFormat, crop: str) -> None:
    recipe = load_recipe("none", f"aug.val={{{crop}:{{}}}}", "aug.size=[24,16]", "aug.mean=auto", "aug.std=auto")
    pixels = replace(pixels, mean=(0.25,) * pixels.channels, std=tuple(0.1 * (n + 1) for n in range(pixels.channels)))
    shape, draw = (33, 40, pixels.channels), np.random.default_rng(3)
    image: NDArray[Any] = draw.random(shape, np.float32)
    if pixels.dtype != "float32":
        limits = np.iinfo(pixels.dtype)
        image = draw.integers(limits.min, limits.max, shape, pixels.dtype, endpoint=True)
    transform = Transform(recipe, "val", device="cpu", pixels=pixels)
    expected, found = transform([image])[0], Crop(transform.plan)(torch.from_numpy(image)[None])[0]
    difference = (found - expected).abs() * torch.tensor(pixels.std)[:, None, None] * 255
    if pixels.is_bytes:  # sides may round values halfway between two levels differently
        assert (difference > 0.01).float().mean() < 0.01
        assert difference.max() < 1.01
    else:
        assert difference.max() < 0.01


def test_pixels_without_data_become_black_in_graph_and_transform(device: torch.device) -> None:
    pixels = PixelFormat(2, "float32", low=(0.5, -1), high=(1, 3), rgb=None, mean=(0, 0), std=(1, 1), nodata=-9999)
    recipe = load_recipe({"size": 12, "mean": [0, 0], "std": [1, 1], "val": {"resize": {}}})
    transform = Transform(recipe, "val", device=device, pixels=pixels)
    image = np.random.default_rng(0).random((12, 12, 2), np.float32)
    expected = pixels.levels(image)
    image[2:5, 3], image[0, 0] = -9999, np.nan
    expected[2:5, 3] = expected[0, 0] = 0
    batch = torch.from_numpy(image)[None]
    for found in (Crop(transform.plan)(batch), transform(batch.to(device)), transform([image])):
        np.testing.assert_allclose(found[0].permute(1, 2, 0).cpu() * 255, expected, atol=1e-3)


def test_an_export_predicts_what_predict_does(
    run: Path, bands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    out = tmp_path / "out"
    assert export([str(run), "--out", str(out), "fit.tta=flip"]) == 0
    assert json.loads((out / "export.json").read_text())["largest"] < 1e-3
    assert imports_of(out / "predict.py") == {*PACKAGES, "contextlib", "io", "tifffile"}
    files = sorted((bands / "val").glob("*/*.npy"))
    for file in files[::3]:
        files += same_in_other_files(file, tmp_path / "others")
    script = runpy.run_path(str(out / "predict.py"))
    for file, expected in zip(files, predict(load_best_model(run, tta="flip", data=False), files), strict=True):
        found = script["predict"](script["read"](file))["probabilities"].tolist()
        assert dict(zip(script["CLASSES"], found, strict=True)) == pytest.approx(probabilities(expected), abs=1e-3)
    Image.new("RGB", (9, 9)).save(tmp_path / "photo.png")
    (tmp_path / "broken.tif").write_bytes(b"II*\0")
    turned = np.zeros((9, 9, 4), np.uint16)
    tifffile.imwrite(tmp_path / "turned.tif", turned, photometric="rgb", extratags=[(274, "H", 1, 6, True)])
    wrong = [str(tmp_path / name) for name in ("photo.png", "broken.tif", "turned.tif")]
    for arguments, code in ([str(bands / "val/dark")], "0"), ([*wrong, str(files[0])], "2"):
        monkeypatch.setattr(sys, "argv", ["predict.py", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit, match=code):
            runpy.run_path(str(out / "predict.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert "photo.png: has shape (9, 9, 3) and uint8 pixels, but the model takes 4 channels of uint16" in printed.err
    assert "broken.tif: " in printed.err
    assert "turned.tif: is rotated by its metadata" in printed.err
    assert "dark" in printed.out


@pytest.mark.long
def test_smaller_variants_take_the_stored_data_type(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    assert export([str(run), "--variants", "torch,fp16,int8", "--calibrate", "12", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "export.json").read_text())
    assert report["files"].keys() == {"model.onnx", "model.pt2", "model-fp16.onnx", "model-int8.onnx"}
    assert report["files"]["model.pt2"]["largest"] < 1e-3
    assert all(of["exported"]["val_accuracy"] == 1 for of in report["files"].values())


def test_transforms_of_other_formats_are_not_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    for call in (
        lambda: export([str(run), "--preprocessing", "beside", "--unchecked", "--out", str(tmp_path / "out")]),
        lambda: export_transform(["--run", str(run), "--out", str(tmp_path / "out")]),
    ):
        with pytest.raises(SystemExit, match="2"):
            call()
        assert "4 channels of uint16. Run python -m trainer export RUN" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_detector_of_other_channels_is_exported(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from trainer.tools.export.detector import ServedDetector
    from trainer.tools.export.graph import onnx_bytes
    from trainer.tools.export.write import predict_source

    torch.manual_seed(0)
    pixels = PixelFormat.of(4, "uint16", rgb=(3, 1, 0))
    aug = parse_aug({"size": 64, "val": {"letterbox": {}}, "mean": [0.5] * 4, "std": [0.2] * 4})
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=replace(aug, pixels=pixels))
    network: Any = Detector().build(3, Size(64, 64), 4).eval()
    network.detector.score_thresh = 0.0
    plan = build_plan(config.aug, "val")
    served = ServedDetector(
        LoadedModel(config, ("background", "cat", "dog"), network, task_named("detect"), tmp_path), plan
    )
    (tmp_path / "model.onnx").write_bytes(
        onnx_bytes(served.export(), served, {"classes": ["background", "cat", "dog"]})
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).integers(0, 65536, (40, 50, 4)).astype(np.uint16)
    with torch.no_grad():
        expected = served(torch.from_numpy(image)[None])
    found = session.run(None, {"images": image[None]})
    assert len(found[1]) > 5
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)
    (tmp_path / "predict.py").write_text(predict_source(inside=True, boxes=True, lowest=(0.5,) * 3, pixels=pixels))
    np.save(tmp_path / "image.npy", image)
    script = runpy.run_path(str(tmp_path / "predict.py"))
    drawn = script["draw"](script["read"](tmp_path / "image.npy"), script["predict"](image))
    assert drawn.size == (50, 40)


# --- starting other runs ---


def start(bands: Path, *overrides: str) -> Config:
    return small_config(bands, *PIXELS, *BARE, "fit.epochs=1", *overrides)


def test_weights_of_a_run_bring_its_mean_unless_the_channels_differ(run: Path, bands: Path, own_folder: Path) -> None:
    mean = load(run / BEST, BestModel).pixel_format.mean
    config = start(bands, f"model.weights={run}")
    assert config.recipe.mean == config.aug.mean == mean
    photos = draw_classes(own_folder / "photos", NAMES)
    with pytest.raises(UserError, match=r"model\.weights=.*16 x 4 x 3 x 3 in the file and 16 x 3 x 3 x 3 in the model"):
        check_config(small_config(photos, f"model.weights={run}"))
    rgb = small_config(photos, *BARE, "fit.epochs=1")
    train(rgb, own_folder / "rgb", console=QUIET)
    config = start(bands, f"model.weights={own_folder / 'rgb'}", "aug.std=[0.5,0.5,0.5,0.5]")
    assert (config.recipe.mean, config.recipe.std) == (None, (0.5,) * 4)
    check_config(config)
    train(config, own_folder / "adapted", console=QUIET)
    pixels = load_best_model(own_folder / "adapted", data=False).config.aug.pixels
    assert pixels.mean == pytest.approx(mean)
    assert pixels.std == (0.5,) * 4
    with pytest.raises(UserError, match=r"aug\.mean has 3 numbers, but images have 4 channels"):
        check_config(start(bands, "aug.mean=[0.1,0.2,0.3]"))


def test_a_teacher_has_the_format_of_its_student(run: Path, bands: Path, own_folder: Path) -> None:
    check_config(start(bands, f"fit.teacher={run}"))
    photos = draw_classes(own_folder / "photos", NAMES)
    teacher = shutil.copytree(run, own_folder / "teacher")
    with pytest.raises(UserError, match=r"fit\.teacher=.*4 channels of uint16, and the data has 3 channels of uint8"):
        check_config(small_config(photos, f"fit.teacher={teacher}"))
    with pytest.raises(UserError, match=r"fit\.teacher=.*a different data\.range"):
        check_config(start(bands, f"fit.teacher={run}", "data.range=[0,65535]"))
