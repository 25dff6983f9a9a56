"""Runs of boxes and of points from the command line: training, resuming, evaluation, predictions."""

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from annotated import coco, turned
from PIL import Image
from runs import QUIET, rows_of
from scripts import PACKAGES, imports_of

from augment.cli.compose import compose
from augment.data.dataset import ImageRef
from augment.data.images import to_rgb
from augment.params import Size
from augment.pipeline.serving.torch_crops import Crop
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from trainer.models.torchvision_models import Detector
from trainer.predictions.formats import as_csv, as_json
from trainer.predictions.predict import Prediction
from trainer.predictions.predict import predict as predict_images
from trainer.run.best_model import Trained, load_trained
from trainer.run.config.checks import check_config
from trainer.run.config.schema import Config, parse_config
from trainer.run.train import train
from trainer.tasks.registry import task_named
from trainer.tools import evaluate, predict
from trainer.tools.export.command import main as export
from trainer.tools.export.comparison import compare
from trainer.tools.export.detector import ServedDetector
from trainer.tools.export.graph import onnx_bytes

SIZES = [(64, 48), (48, 64), (56, 56), (64, 48), (48, 64), (56, 56)]
# Of the first image; of the third, and one that is a crowd; the others have no object.
ANNOTATIONS = [
    {"bbox": [4, 4, 20, 20], "category_id": 3},
    {"bbox": [30, 10, 25, 30], "category_id": 7},
    {"bbox": [8, 8, 30, 30], "image_id": 12, "category_id": 3},
    {"bbox": [30, 30, 20, 20], "image_id": 12, "category_id": 7, "iscrowd": 1},
]
QUICK = ["aug.size=64", "fit.batch_size=2", "fit.epochs=2", "fit.device=cpu", "fit.threads=1", "fit.optimizer=adamw"]
QUICK += ["aug.train.flip.p=0.5", "fit.lr=1e-3"]
LETTERBOX = parse_aug({"size": [64, 96], "val": {"letterbox": None}})


def config_of(folder: Path, *overrides: str) -> Config:
    files = [f"data.{split}={coco(str(folder / split / 'all.json'), SIZES, ANNOTATIONS)}" for split in ("train", "val")]
    return parse_config(compose(["data=coco", *files, "model=detector", *QUICK, *overrides]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("faster_coco_eval")
    made = tmp_path_factory.mktemp("boxes")
    for split in ("train", "val"):
        (made / split).mkdir()
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train(config_of(folder), folder / "run", console=QUIET)
    return folder / "run"


def test_a_run_of_boxes_is_scored_and_reported(run: Path) -> None:
    rows = rows_of(run)
    assert [set(row) & {"val_loss", "val_map"} for row in rows] == [{"val_map"}] * 2
    assert all(row["train_loss"] > 0 for row in rows)
    scores = evaluate.evaluate(run)
    best = max(rows, key=lambda row: row["val_map"])
    assert scores.values == pytest.approx({key: value for key, value in best.items() if key.startswith("val_")})
    assert list(scores.per_class) == ["cat", "dog"]
    assert scores.per_class["dog"]["objects"] == 1  # the crowd does not count
    assert "Average precision of each class in the best epoch" in (run / "report.html").read_text()
    assert (run / "classes.png").is_file()


def test_objects_are_those_of_the_upright_images(run: Path, tmp_path: Path) -> None:
    written = json.loads(as_json(predict_images(load_trained(run), turned(tmp_path), threshold=0.01)))
    assert {(image["width"], image["height"]) for image in written["images"]} == {(48, 36)}
    boxes: dict[int, list[list[float]]] = {}
    for annotation in written["annotations"]:
        boxes.setdefault(annotation["image_id"], []).append(annotation["bbox"])
    assert len(boxes) == 8
    for found in boxes.values():
        np.testing.assert_allclose(found, boxes[1], atol=1e-3)


def test_objects_are_predicted_in_pixels_of_their_images(run: Path) -> None:
    images = sorted((run.parent / "val").glob("*.jpg"))
    found = predict_images(trained := load_trained(run), images, threshold=0.01)
    assert any(prediction.classes for prediction in found)
    written = json.loads(as_json(found))
    assert written["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}], "without ids"
    for image, file in zip(written["images"], images, strict=True):
        with Image.open(file) as opened:
            assert (image["file_name"], image["width"], image["height"]) == (str(file), *opened.size)
    sizes = {image["id"]: (image["width"], image["height"]) for image in written["images"]}
    for annotation in written["annotations"]:
        left, top, width, height = annotation["bbox"]
        assert min(left, top) >= 0
        assert left + width <= sizes[annotation["image_id"]][0] + 1e-3
        assert top + height <= sizes[annotation["image_id"]][1] + 1e-3
    assert max(left + width for left, _, width, _ in (a["bbox"] for a in written["annotations"])) > 56
    every, best = (predict_images(trained, images[:1], threshold=0.0, top=top)[0].classes for top in (None, 1))
    assert len(every) > 1
    assert best == every[:1]
    lines = as_csv(found).splitlines()
    assert lines[0] == "file,error,class,score,left,top,right,bottom"
    assert len(lines) == 1 + sum(max(1, len(prediction.classes)) for prediction in found)


def test_predictions_have_the_ids_of_the_annotations(run: Path, tmp_path: Path) -> None:
    images = sorted((run.parent / "val").glob("*.jpg"))
    Image.open(images[0]).save(tmp_path / "new.jpg")
    words = [str(run), *map(str, images[1:]), str(tmp_path / "new.jpg"), "--threshold", "0.01", "--json"]
    assert predict.main([*words, str(tmp_path / "a.json")]) == 0
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["categories"] == [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    assert [image["id"] for image in written["images"]] == [11, 12, 13, 14, 15, 16]
    assert {annotation["category_id"] for annotation in written["annotations"]} <= {3, 7}
    other = {
        "images": [{"id": "n", "file_name": "new.jpg"}],
        "annotations": [],
        "categories": [{"id": 90, "name": "dog"}],
    }
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert predict.main([*words, str(tmp_path / "b.json"), "--annotations", str(tmp_path / "other.json")]) == 0
    written = json.loads((tmp_path / "b.json").read_text())
    assert [image["id"] for image in written["images"]] == [1, 2, 3, 4, 5, "n"]
    assert written["categories"][1] == {"id": 90, "name": "dog"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=cnn"], r"model\.kind=cnn: this model does not predict boxes.* Allowed: model=detector\."),
        (["fit.tta=flip"], r"fit\.tta=flip: a model that predicts boxes cannot"),
        (["fit.compile=true"], r"fit\.compile=true .* predict boxes"),
        (["callbacks.checkpoint.monitor=val_loss"], r"callbacks\.checkpoint\.monitor: val_loss is not measured"),
    ],
)
def test_what_boxes_cannot_have_is_refused(folder: Path, overrides: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_config(config_of(folder, *overrides))


def assert_same(found: Mapping[str, np.ndarray], expected: Prediction, pixels: float = 0.1) -> None:
    """Check that an export finds the objects with the highest scores that `predict` finds."""
    assert expected.objects is not None
    scores = found["scores"].tolist()
    assert len(scores) > 5
    assert scores == sorted(scores, reverse=True)
    for one in expected.objects.found[:20]:
        same = (found["labels"] == one.label) & (np.abs(found["boxes"] - one.box).max(axis=1) < pixels)
        assert np.abs(found["scores"][same] - one.score).min() < 1e-3


def test_an_exported_detector_finds_what_predict_finds(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In images of any size and orientation, by its own script, and as a program of torch.export."""
    pytest.importorskip("onnxscript")
    out = tmp_path / "out"
    assert export([str(run), "--variants", "torch", "--out", str(out)]) == 0
    assert "px" in capsys.readouterr().out
    report = json.loads((out / "export.json").read_text())
    assert report["exported"] == pytest.approx(report["pytorch"], abs=1e-3)
    assert (report["images"], report["differing"]) == (6, [])
    assert report["largest"] < 1e-3
    assert report["pixels"] < 0.1
    assert report["files"]["model.pt2"]["exported"] == pytest.approx(report["pytorch"], abs=1e-3)
    assert imports_of(out / "predict.py") == PACKAGES
    script = runpy.run_path(str(out / "predict.py"))
    program = torch.export.load(out / "model.pt2").module()
    files = [*turned(tmp_path), *sorted((run.parent / "val").glob("*.jpg"))]
    for file, expected in zip(files, predict_images(load_trained(run), files, threshold=0.0), strict=True):
        with Image.open(file) as image:
            assert_same(script["predict"](image), expected)
            pixels = torch.from_numpy(np.array(to_rgb(image)))[None]
        names = ("boxes", "scores", "labels")
        assert_same(dict(zip(names, (of.detach().numpy() for of in program(pixels)), strict=True)), expected)
    monkeypatch.chdir(tmp_path)
    source = (out / "predict.py").read_text().replace("LOWEST = 0.5", "LOWEST = 0.01")
    (out / "predict.py").write_text(source)
    monkeypatch.setattr(sys, "argv", ["predict.py", str(out / "model.onnx"), str(files[5]), "missing.jpg"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(out / "predict.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert "missing.jpg" in printed.err
    assert printed.out.splitlines()[0].split("  ")[1].split()[0] in ("cat", "dog")
    with Image.open("boxes/6.png") as drawn:
        assert drawn.size == (48, 36)
        assert np.ptp(np.asarray(drawn), axis=2).max() > 50, "boxes in color on the gray image"


@pytest.mark.parametrize(
    "crop", ["aug.val.resize.side=short", "aug.val.resize.side=long", "aug.val.resize.side=both", "aug.size=[40,72]"]
)
def test_exported_boxes_follow_the_crop(run: Path, crop: str) -> None:
    """This barely trained model moves boxes by 0.1 px if DALI rounds a pixel differently."""
    trained = load_trained(run, [crop])
    files = sorted((run.parent / "val").glob("*.jpg"))
    served = ServedDetector(trained, build_plan(trained.config.aug, "val"))
    for file, expected in zip(files, predict_images(trained, files, threshold=0.0), strict=True):
        with Image.open(file) as image, torch.no_grad():
            found = served(torch.from_numpy(np.array(to_rgb(image)))[None])
        assert_same(dict(zip(served.outputs, (of.numpy() for of in found), strict=True)), expected, pixels=0.3)


def test_objects_that_an_export_misses_adds_or_moves_are_reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = load_trained(run)
    split = evaluate.evaluated_split(trained, None)
    monkeypatch.setattr("trainer.tools.export.comparison.SHOWN", 0.0)
    found = {of.file: of.objects for of in predict_images(trained, split.files, threshold=0.0)}

    def outputs(image: ImageRef, *, shift: float = 0, first: int = 0, label: int = 0) -> list[np.ndarray]:
        rows = found[cast(Path, image)].found[first:]
        boxes = np.array([one.box for one in rows], np.float32).reshape(-1, 4) + np.float32(shift)
        return [boxes, np.float32([of.score for of in rows]), np.int64([label or of.label for of in rows])]

    exports = {
        "same": outputs,
        "moved": partial(outputs, shift=0.25),
        "none": partial(outputs, first=1000),
        "other class": partial(outputs, label=9),
    }
    checks = compare(trained, split, exports)
    assert (checks["same"].differing, checks["same"].largest) == ((), pytest.approx(0, abs=1e-6))
    assert checks["same"].pixels == pytest.approx(0, abs=1e-4)
    assert checks["same"].exported == pytest.approx(checks["same"].pytorch, abs=1e-6)
    assert checks["moved"].pixels == pytest.approx(0.25, abs=1e-4)
    assert len(checks["none"].differing) == len(checks["other class"].differing) == 6
    assert not checks["none"].exported["val_map50"]


def detector(name: str, photos: Sequence[torch.Tensor]) -> torch.nn.Module:
    """Return an untrained detector with a lowest score that only the first photo reaches, or only the second."""
    torch.manual_seed(0)
    network: Any = Detector(name=name).build(3, Size(64, 96))
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # with the statistics of one batch, no score is like another
            module.momentum = 1.0
    with torch.no_grad():
        network.detector.backbone(torch.randn(4, 3, 64, 96))
        head = getattr(network.eval().detector, "roi_heads", network.detector)
        head.score_thresh = 0.0
        best = [max(network(served_input(photo))[0, :, 5].tolist()) for photo in photos]
    assert best[0] != best[1]
    head.score_thresh = sum(best) / 2
    return network


def served_input(photo: torch.Tensor) -> torch.Tensor:
    return Crop(build_plan(LETTERBOX, "val"))(photo)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fcos_cnn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn",
                                  "ssdlite320_mobilenet_v3_large"])  # fmt: skip
def test_each_kind_of_detector_is_exported(name: str) -> None:
    """Also an image without any object has outputs, which are empty."""
    onnxruntime = pytest.importorskip("onnxruntime")
    draw = torch.Generator().manual_seed(1)
    photos = [
        torch.randint(0, 256, (1, 70, 50, 3), dtype=torch.uint8, generator=draw),
        torch.full((1, 64, 130, 3), 40, dtype=torch.uint8),
    ]
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=LETTERBOX)
    network = detector(name, photos)
    trained = Trained(config, ("background", "cat", "dog"), network, task_named("detect"), Path())
    served = ServedDetector(trained, build_plan(LETTERBOX, "val"))
    program = served.export()
    session = onnxruntime.InferenceSession(onnx_bytes(program, served, {}), providers=["CPUExecutionProvider"])
    names = list(served.outputs)
    assert [of.name for of in session.get_outputs()] == names
    assert ("masks" in names) == (name == "maskrcnn_resnet50_fpn")
    counts = []
    for photo in photos:
        with torch.no_grad():
            expected, graph = served(photo), program.module()(photo)
        found = session.run(None, {"images": photo.numpy()})
        counts.append(len(found[0]))
        assert len(expected[0]) == counts[-1]
        for at in range(len(names)):
            if names[at] != "masks":
                torch.testing.assert_close(graph[at], expected[at], atol=1e-3, rtol=1e-3)
                torch.testing.assert_close(torch.from_numpy(found[at]), expected[at], atol=1e-2, rtol=1e-3)
        assert "masks" not in names or found[3].shape == (counts[-1], 1, 28, 28)
    assert min(counts) == 0 < max(counts)


def test_what_a_detector_cannot_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, remedy in (
        (["--preprocessing", "beside"], "Remove --preprocessing"),
        (["--variants", "int8"], "6 training images"),
    ):
        with pytest.raises(SystemExit, match="2"):
            export([str(run), *given, "--out", str(tmp_path / "out")])
        assert remedy in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_points_are_trained_and_predicted(tmp_path: Path) -> None:
    """The points of each image are those of its stored pixels, as the boxes' files have them."""
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        coco(str(tmp_path / split / "all.json"), SIZES, [])
        rows = [f"{number}.jpg,{10 + number},12,40,{30 + number}" for number in range(len(SIZES))]
        (tmp_path / split / "all.csv").write_text(
            "\n".join(["path,x_left_eye,y_left_eye,x_right_eye,y_right_eye", *rows])
        )
    given = [f"data.{split}={tmp_path / split / 'all.csv'}" for split in ("train", "val")]
    config = parse_config(compose(["data=points", *given, *QUICK, "fit.tta=flip"]))
    train(config, tmp_path / "run", console=QUIET)
    (found, *_) = predict_images(load_trained(tmp_path / "run"), [tmp_path / "val" / "0.jpg"])
    assert [name for name, _ in found.numbers] == ["left_eye_x", "left_eye_y", "right_eye_x", "right_eye_y"]
    points = [dict(of.numbers) for of in predict_images(load_trained(tmp_path / "run"), turned(tmp_path))]
    assert points == [pytest.approx(points[0], abs=1e-3)] * 8
    assert evaluate.evaluate(tmp_path / "run").tta == "flip"
    assert "Correct keypoints in the best epoch" in (tmp_path / "run" / "report.html").read_text()
