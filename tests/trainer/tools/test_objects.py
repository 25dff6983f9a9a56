"""Runs of boxes and of points from the command line: training, resuming, evaluation, predictions."""

import json
import logging
import re
import runpy
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from annotated import coco, turned
from documented import blocks
from PIL import Image
from runs import QUIET, rows_of
from scripts import PACKAGES, imports_of

from augment.cli.compose import compose
from augment.data.dataset import ImageRef
from augment.data.images import to_rgb
from augment.data.sources import load_dataset
from augment.drawing.target_overlays import color_of
from augment.params import Size
from augment.pipeline.serving.torch_crops import Crop
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.models.torchvision_models import Detector
from trainer.predictions.formats import as_csv, as_json
from trainer.predictions.masks import draw_prediction
from trainer.predictions.predict import predict as predict_images
from trainer.predictions.trained_model import load_model
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.run.config.checks import check_config
from trainer.run.config.schema import Config, parse_config
from trainer.run.train import train
from trainer.tasks.display import FoundObject, FoundObjects, Prediction
from trainer.tasks.registry import task_named
from trainer.tools import evaluate, predict
from trainer.tools.export.command import main as export
from trainer.tools.export.comparison import _ObjectComparison, compare
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
    expected = {key: value for key, value in best.items() if key.startswith("val_")}
    assert {key: scores.values[key] for key in expected} == pytest.approx(expected)
    assert scores.values.keys() - expected.keys() == {"run_precision_macro", "run_recall_macro", "run_f1"}
    assert list(scores.per_class) == ["cat", "dog"]
    assert scores.per_class["dog"]["objects"] == 1  # the crowd does not count
    page = (run / "report.html").read_text()
    assert "Best threshold, precision, recall and F1 of each class" in page
    assert "Average precision of each class in the best epoch" in page
    assert '<label class="zoom"><input type="checkbox"' in page, "a click enlarges the worst images"
    assert (run / "classes.png").is_file()


def test_a_run_chooses_thresholds_that_predictions_use(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = load(run / BEST, BestModel)
    assert best.samples is not None
    samples = task_named("detect").samples(**best.samples)
    assert tuple(best.thresholds) == task_named("detect").choose_thresholds(samples, best.classes)
    images = sorted((run.parent / "val").glob("*.jpg"))
    every = predict_images(load_best_model(run), images, threshold=0.0)
    middle = float(np.median([score for image in every for name, score in image.classes if name == "cat"]))
    trained = replace(load_best_model(run), thresholds=(0.5, middle, 0.999))
    for image, shown in zip(every, predict_images(trained, images), strict=True):
        assert shown.classes == tuple(
            (name, score) for name, score in image.classes if name == "cat" and score >= middle
        )
    assert sum(len(shown.classes) for shown in predict_images(trained, images)) > 0
    old = replace(trained, thresholds=())
    assert predict_images(old, images) == predict_images(old, images, threshold=0.5)
    assert evaluate.main([str(run)]) == 0
    printed = capsys.readouterr().out
    assert "threshold" in printed
    assert "run_f1" in printed
    scores = json.loads((run / "evaluation.json").read_text())
    assert scores["per_class"]["dog"]["run"]["threshold"] == best.thresholds[2]


def test_objects_in_python_as_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [code for page, code in blocks("python") if page == "docs/detection.md"]
    for shown, used in (('"RUN"', repr(str(run))), ('"DIR"', repr(str(run.parent / "val"))), ("0.3", "0.01")):
        code = code.replace(shown, used)
    exec(code, {})
    assert re.match(r".*\.jpg (cat|dog) 0\.\d+ ", capsys.readouterr().out)


def test_objects_are_those_of_the_upright_images(run: Path, tmp_path: Path) -> None:
    written = json.loads(as_json(predict_images(load_best_model(run), turned(tmp_path), threshold=0.01)))
    assert {(image["width"], image["height"]) for image in written["images"]} == {(48, 36)}
    boxes: dict[int, list[list[float]]] = {}
    for annotation in written["annotations"]:
        boxes.setdefault(annotation["image_id"], []).append(annotation["bbox"])
    assert len(boxes) == 8
    for found in boxes.values():
        np.testing.assert_allclose(found, boxes[1], atol=1e-3)


def test_objects_are_predicted_in_pixels_of_their_images(run: Path) -> None:
    images = sorted((run.parent / "val").glob("*.jpg"))
    found = predict_images(trained := load_best_model(run), images, threshold=0.01)
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


def test_the_table_shows_the_best_objects_and_files_have_all(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run), str(run.parent / "val" / "0.jpg"), "--threshold", "1e-6"]
    assert predict.main([*words, "--csv", str(tmp_path / "all.csv")]) == 0
    rows = (tmp_path / "all.csv").read_text().splitlines()[1:]
    assert len(rows) > 20
    capsys.readouterr()
    assert predict.main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("%") == 20
    assert f"%, {len(rows) - 20} more" in " ".join(printed.replace("│", " ").split()), "wherever the line is broken"
    assert predict.main([*words, "--top", "20"]) == 0
    assert " more" not in capsys.readouterr().out


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


def test_images_of_the_same_name_have_different_ids(run: Path, tmp_path: Path) -> None:
    image, listed = sorted((run.parent / "val").glob("*.jpg"))[0], tmp_path / "listed.json"
    for name in ("a/1.jpg", "b/1.jpg", "c/2.jpg"):
        (tmp_path / name).parent.mkdir()
        Image.open(image).save(tmp_path / name)
    images = [{"id": 5, "file_name": "1.jpg"}, {"id": 6, "file_name": "2.jpg"}]
    listed.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 90, "name": "dog"}]}))
    folders, file = [str(tmp_path / name) for name in "abc"], str(tmp_path / "found.json")
    assert predict.main([str(run), *folders, "--json", file, "--annotations", str(listed)]) == 0
    assert [image["id"] for image in json.loads(Path(file).read_text())["images"]] == [7, 8, 6]


def test_evaluate_finds_the_images_of_an_annotation_file(run: Path, tmp_path: Path) -> None:
    files = {split: run.parent / split for split in ("train", "val")}
    moved = {
        split: Path(shutil.copy(folder / "all.json", tmp_path / f"{split}.json")) for split, folder in files.items()
    }
    other = Path(shutil.copy(moved["val"], tmp_path / "other.json"))
    given = [f"data.{split}={moved[split]}" for split in files]
    given += [f"data.{split}_images={folder}" for split, folder in files.items()]
    source = parse_config(compose(["data=coco", *given, *QUICK, "model=detector"])).data
    for split, folder in files.items():
        found = load_dataset(source.of_folder(moved[split]), needs_val=False).train.files
        assert found[0] == folder / "0.jpg", "both folders have an image of this name"
    with pytest.raises(UserError, match=r"other\.json: the run's training .* Set data\.images to the folder"):
        source.of_folder(other)
    found = load_dataset(replace(source, images=str(files["val"])).of_folder(other), needs_val=False).train.files
    assert found[0] == files["val"] / "0.jpg"


def test_overlays_of_boxes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each image has one, at its path in the given folder, also without objects and in a folder that exists."""
    photos, drawn = tmp_path / "photos", tmp_path / "drawn"
    for name, size in (("a.jpg", (64, 48)), ("b/a.jpg", (700, 500))):
        (photos / name).parent.mkdir(exist_ok=True, parents=True)
        Image.open(run.parent / "val" / "0.jpg").resize(size).save(photos / name)
    words = [str(run), str(photos), "--overlay", "--out", str(drawn)]
    assert predict.main([*words, "--threshold", "0.01"]) == 0
    assert f"overlays: {drawn}" in capsys.readouterr().out
    files = sorted(path for path in drawn.rglob("*") if path.is_file())
    assert files == [drawn / "a_overlay.jpg", drawn / "b" / "a_overlay.jpg"]
    found = predict_images(load_best_model(run), [photos / "b" / "a.jpg"], threshold=0.01)[0].objects
    assert found is not None
    before = files[1].read_bytes()
    with Image.open(files[1]) as image, Image.open(photos / "b" / "a.jpg") as photo:
        assert image.width == photo.width
        assert image.height > photo.height, "the legend"
        pixels = np.asarray(image.convert("RGB")).astype(int)
    for label in {of.label for of in found.found}:
        assert (np.abs(pixels[500:] - color_of(label)).max(axis=2) < 30).sum() > 60, "its square in the legend"
    assert predict.main([*words, "--threshold", "1"]) == 0
    shown = capsys.readouterr().out
    assert "nothing found" in shown
    assert "--threshold" in shown
    assert files[1].read_bytes() != before, "an overlay is replaced"
    assert sorted(path for path in drawn.rglob("*") if path.is_file()) == files
    assert predict.main([str(run), str(photos / "a.jpg"), "--overlay"]) == 0
    assert (run / "overlays" / "a_overlay.jpg").is_file()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "new"], r"^error: --out: .*this model predicts boxes.* or add --overlay\.$"),
        (["--explain", "new"], r"^error: --explain: .*this model predicts boxes.* use --overlay instead\.$"),
        (["--overlay", "--out", "file"], r"^error: --out file: cannot be written"),
        (
            ["--overlay", "--out", "."],
            r"^error: --out \.: would replace the image .*a_overlay\.jpg.* another folder\.$",
        ),
    ],
)
def test_flags_of_predict_that_boxes_cannot_have(
    run: Path,
    tmp_path: Path,
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "a_overlay.jpg"):
        Image.open(run.parent / "val" / "0.jpg").save(name)
    Path("file").touch()
    content = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit, match="2"):
        predict.main([str(run), "a.jpg", "a_overlay.jpg", *flags])
    error = capsys.readouterr().err
    assert re.match(message, error.strip())
    assert error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == content


def test_overlays_of_other_tasks_are_drawn() -> None:
    """Many objects take seconds, and an image of one pixel has an overlay, too."""
    gray, path = np.full((100, 400, 3), 128, np.uint8), Path("a.jpg")
    edges = np.random.default_rng(0).uniform(0, 80, (10_000, 4)).cumsum(axis=1)
    cats = tuple(FoundObject("cat", 1, 0.5, tuple(box)) for box in edges)
    many = FoundObjects(cats, (400, 100), ("background", "cat"))
    for task, prediction in (
        ("detect", Prediction(path, objects=many)),
        ("detect", Prediction(path, objects=FoundObjects((), (400, 100), many.names))),
        ("classify", Prediction(path, classes=(("cat", 0.9), ("a long name " * 20, 0.1)))),
        ("multilabel", Prediction(path)),
        ("regress", Prediction(path, numbers=(("age", 3.25),))),
        ("keypoints", Prediction(path, numbers=(("nose_x", 50.0), ("nose_y", 60.0)))),
    ):
        names = many.names if task == "detect" else ("nose",)
        drawn = draw_prediction(gray, prediction, task_named(task), names)
        assert drawn.shape[1] == 400
        assert drawn.shape[0] > 100
        assert (drawn[100:] < 100).any(), f"{task}: text in the legend"
        changed = (drawn[:100] != 128).any()
        assert changed == (task == "keypoints" or bool(prediction.objects and prediction.objects.found))
        assert draw_prediction(gray[:1, :1], prediction, task_named(task), names).shape[1] == 320


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=cnn"], r"model\.kind=cnn: this model does not predict boxes.* Choose aug=detect or model=detector\."),
        (["fit.tta=flip"], r"fit\.tta=flip: a model that predicts boxes cannot"),
        (["fit.compile=true"], r"fit\.compile=true .* predict boxes"),
        (["model.name=maskrcnn_resnet50_fpn"], r"model\.name: .* Set data\.instances=true"),
        (
            ["callbacks.checkpoint.monitor=val_mask_map"],
            r"callbacks\.checkpoint\.monitor: val_mask_map is not measured",
        ),
        (["callbacks.checkpoint.monitor=val_loss"], r"callbacks\.checkpoint\.monitor: val_loss is not measured"),
    ],
)
def test_what_boxes_cannot_have_is_rejected(folder: Path, overrides: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_config(config_of(folder, *overrides))


@pytest.fixture
def small_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the backbone, the heads and the proposals of Mask R-CNN by smaller or fewer ones."""
    from torchvision.models import detection
    from torchvision.models.detection import mask_rcnn
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    from trainer.models.torchvision_detector import _SmallBackbone

    def build(*, num_classes: int, **_: object) -> object:
        places = list("012")
        return detection.MaskRCNN(
            _SmallBackbone(),
            num_classes,
            rpn_anchor_generator=AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3),
            box_roi_pool=MultiScaleRoIAlign(places, 7, 2),
            mask_roi_pool=MultiScaleRoIAlign(places, 14, 2),
            mask_head=mask_rcnn.MaskRCNNHeads(64, (16, 256), 1),
            **{f"rpn_{when}_nms_top_n_{split}": 20 for when in ("pre", "post") for split in ("train", "test")},
            box_batch_size_per_image=16,
            box_score_thresh=0.0,
        )

    monkeypatch.setattr(detection, "maskrcnn_resnet50_fpn", build)


@pytest.mark.usefixtures("small_masks")
@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # pycocotools
def test_a_run_of_masks(folder: Path, tmp_path: Path) -> None:
    """Four of six images have no object."""
    from pycocotools import mask as codes

    shapes = [[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in (of["bbox"] for of in ANNOTATIONS)]
    annotations = [of | {"segmentation": shape} for of, shape in zip(ANNOTATIONS, shapes, strict=True)]
    splits = ("train", "val")
    files = [f"data.{split}={coco(str(tmp_path / split / 'all.json'), SIZES, annotations)}" for split in splits]
    given = ["model=detector", "model.name=maskrcnn_resnet50_fpn", "data.instances=true", *QUICK]
    config = parse_config(compose(["data=coco", *files, *given, "callbacks.checkpoint.monitor=val_mask_map"]))
    train(config, run := tmp_path / "run", console=QUIET)
    rows = rows_of(run)
    assert all(0 <= row["val_mask_map"] <= 1 for row in rows)
    assert "val mask mAP" in (run / "report.html").read_text()
    scores = evaluate.evaluate(run)
    assert scores.values["val_mask_map"] == max(row["val_mask_map"] for row in rows)

    trained, files = load_best_model(run), turned(tmp_path)
    found = predict_images(trained, files, threshold=0.0)
    for prediction in found:
        assert prediction.objects is not None
        for one in prediction.objects.found:
            assert one.mask is not None
            assert (one.mask.shape, one.mask.dtype) == ((36, 48), np.dtype(bool)), "the size of the upright image"
            left, top, right, bottom = one.box
            rows_of_mask, columns = one.mask.any(axis=1).nonzero()[0], one.mask.any(axis=0).nonzero()[0]
            for places, low, high in ((rows_of_mask, top, bottom), (columns, left, right)):
                assert not len(places) or (low - 1 <= places[0] and places[-1] <= high)
    written = json.loads(as_json(found))["annotations"]
    masks = [one.mask for of in found if of.objects for one in of.objects.found]
    assert len(written) == len(masks) > 0
    assert any(mask is not None and mask.any() for mask in masks)
    for annotation, mask in zip(written, masks, strict=True):
        np.testing.assert_array_equal(codes.decode(annotation["segmentation"]), mask)
        assert annotation["area"] == codes.area(annotation["segmentation"])
    (image,) = load_model(run, device="cpu").predict(files[0], threshold=0.0)
    assert image.objects is not None
    assert [of.runs for of in image.objects.found] == [of.runs for of in found[0].objects.found]  # type: ignore[union-attr]
    drawn = draw_prediction(np.zeros((36, 48, 3), np.uint8), image, trained.task, trained.classes)
    assert (drawn > 0).any()


def assert_same(found: Mapping[str, np.ndarray], expected: Prediction, pixels: float = 0.1) -> None:
    """Check that an export finds the objects with the highest scores that `predict` finds."""
    assert expected.objects is not None
    scores = found["scores"].tolist()
    assert len(scores) > 5
    assert scores == sorted(scores, reverse=True)
    for one in expected.objects.found[:20]:
        same = (found["labels"] == one.label) & (np.abs(found["boxes"] - one.box).max(axis=1) < pixels)
        assert (np.abs(found["scores"][same] - one.score) < 1e-3).any()


def test_an_exported_detector_finds_what_predict_finds(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In images of any size and orientation by its own script, and also as a program of torch.export."""
    pytest.importorskip("onnxscript")
    torch_logger = logging.getLogger("torch")
    monkeypatch.setattr(torch_logger, "handlers", [caplog.handler])  # its own handler prints to the terminal
    monkeypatch.setattr("trainer.tools.export.write._SECONDS", 0.01)
    out = tmp_path / "out"
    assert export([str(run), "--variants", "torch", "--out", str(out)]) == 0
    assert "px" in capsys.readouterr().out
    assert not [one for one in caplog.records if one.name.startswith("torch") and one.levelno >= logging.WARNING]
    report = json.loads((out / "export.json").read_text())
    assert report["exported"] == pytest.approx(report["pytorch"], abs=1e-3)
    assert (report["images"], report["differing"]) == (6, [])
    assert report["largest"] < 1e-3
    assert report["pixels"] < 0.1
    program = report["files"]["model.pt2"]
    assert program["exported"] == pytest.approx(report["pytorch"], abs=1e-3)
    assert program["differing"] == []
    assert program["largest"] < 1e-3
    assert program["pixels"] < 0.1
    assert imports_of(out / "predict.py") == PACKAGES
    script = runpy.run_path(str(out / "predict.py"))
    files = [*turned(tmp_path), *sorted((run.parent / "val").glob("*.jpg"))]
    for file, expected in zip(files, predict_images(load_best_model(run), files, threshold=0.0), strict=True):
        with Image.open(file) as image:
            assert_same(script["predict"](image), expected)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["predict.py", str(out / "model.onnx"), str(files[5])])
    source, lowest = (out / "predict.py").read_text(), str([*load_best_model(run).thresholds])
    assert lowest in source
    (out / "predict.py").write_text(source.replace(lowest, str([0.999] * 3)))
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(out / "predict.py"), run_name="__main__")
    assert capsys.readouterr().out == f"{files[5]}  no object reaches its threshold in LOWEST\n"
    (out / "predict.py").write_text(source.replace(lowest, str([0.01] * 3)))
    monkeypatch.setattr(sys, "argv", ["predict.py", str(out / "model.onnx"), str(files[5]), "missing.jpg"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(out / "predict.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert "missing.jpg" in printed.err
    assert printed.err.endswith("\ndrawings: boxes\n")
    assert printed.out.splitlines()[0].split("  ")[1].split()[0] in ("cat", "dog")
    folders = [str(run.parent / split) for split in ("val", "train")]
    for arguments, code in (["--help"], "0"), ([], "2"), (folders, "0"), ([str(out)], "2"):
        monkeypatch.setattr(sys, "argv", ["predict.py", str(out / "model.onnx"), *arguments])
        with pytest.raises(SystemExit, match=code):
            runpy.run_path(str(out / "predict.py"), run_name="__main__")
    names = [f"{file.stem}{more}.png" for file in (run.parent / "val").glob("*.jpg") for more in ("", " (2)")]
    assert all(Path("boxes", name).is_file() for name in names), "both folders have images of the same names"
    with Image.open("boxes/6.png") as drawn:
        assert drawn.size == (48, 36)
        assert np.ptp(np.asarray(drawn), axis=2).max() > 50, "boxes in color on the gray image"


@pytest.mark.parametrize(
    "crop", ["aug.val.resize.side=short", "aug.val.resize.side=long", "aug.val.resize.side=both", "aug.size=[40,72]"]
)
def test_exported_boxes_follow_the_crop(run: Path, crop: str) -> None:
    """This barely trained model moves boxes by 0.1 px if DALI rounds a pixel differently."""
    trained = load_best_model(run, [crop])
    files = sorted((run.parent / "val").glob("*.jpg"))
    served = ServedDetector(trained, build_plan(trained.config.aug, "val"))
    for file, expected in zip(files, predict_images(trained, files, threshold=0.0), strict=True):
        with Image.open(file) as image, torch.no_grad():
            found = served(torch.from_numpy(np.array(to_rgb(image)))[None])
        assert_same(dict(zip(served.outputs, (of.numpy() for of in found), strict=True)), expected, pixels=0.3)


def test_an_object_is_not_compared_with_a_neighbor() -> None:
    """The left box, moved by a pixel, overlaps the right one more than itself."""
    objects = torch.tensor([[0, 0, 3, 3, 0, 0.9], [1.2, 0, 4.2, 3, 0, 0.4]])
    comparison: Any = SimpleNamespace(_trained=SimpleNamespace(used_thresholds=(0.5,)), largest=0.0, pixels=0.0)
    assert _ObjectComparison._match(comparison, objects + torch.tensor([1.0, 0, 1, 0, 0, 0]), objects)
    assert (comparison.largest, comparison.pixels) == (0, 1)


def test_objects_that_an_export_misses_adds_or_moves_are_reported(run: Path) -> None:
    trained = replace(load_best_model(run), thresholds=(0.0,) * 3)
    split = evaluate.evaluated_split(trained, None)
    found = {of.file: of.objects for of in predict_images(trained, split.files, threshold=0.0)}

    def outputs(image: ImageRef, *, shift: float = 0, first: int = 0, label: int | None = None) -> list[np.ndarray]:
        rows = found[cast(Path, image)].found[first:]
        boxes = np.array([one.box for one in rows], np.float32).reshape(-1, 4) + np.float32(shift)
        return [
            boxes,
            np.float32([of.score for of in rows]),
            np.int64([of.label if label is None else label for of in rows]),
        ]

    exports = {
        "same": outputs,
        "moved": partial(outputs, shift=0.25),
        "none": partial(outputs, first=1000),
        "other class": partial(outputs, label=0),
    }
    checks = compare(trained, split, exports)
    assert (checks["same"].differing, checks["same"].largest) == ((), pytest.approx(0, abs=1e-6))
    assert checks["same"].pixels == pytest.approx(0, abs=1e-4)
    # Objects of equal scores may change places, which changes the precision of an untrained detector a little.
    assert checks["same"].exported == pytest.approx(checks["same"].pytorch, abs=1e-3)
    assert checks["moved"].pixels == pytest.approx(0.25, abs=1e-4)
    assert len(checks["none"].differing) == len(checks["other class"].differing) == 6
    assert not checks["none"].exported["val_map50"]


@pytest.mark.parametrize("name", ["fcos_cnn", "fcos_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn"])
def test_detectors_list_objects_with_low_scores(name: str) -> None:
    with torch.device("meta"):
        network: Any = Detector(name=name).build(3, Size(64, 64))
    assert getattr(network.detector, "roi_heads", network.detector).score_thresh == 0.05


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


def test_the_background_is_never_found() -> None:
    """FCOS also scores class 0, which has no objects."""
    network: Any = Detector(name="fcos_cnn").build(3, Size(64, 96))
    logits = network.eval().detector.head.classification_head.cls_logits
    logits.bias.data[:2] = 5.0
    config: Any = SimpleNamespace(fit=SimpleNamespace(tta="none"), aug=LETTERBOX)
    trained = LoadedModel(config, ("background", "cat", "dog"), network, task_named("detect"), Path())
    photo = torch.full((1, 64, 96, 3), 40, dtype=torch.uint8)
    with torch.no_grad():
        rows = network(served_input(photo))[0]
        served = ServedDetector(trained, build_plan(LETTERBOX, "val"))(photo)
    assert {*rows[rows[:, 5] > 0][:, 4].tolist()} == {*served[2].tolist()} == {1}


def served_input(photo: torch.Tensor) -> torch.Tensor:
    return Crop(build_plan(LETTERBOX, "val"))(photo)


class TwoLevels(torch.nn.Module):
    """A small backbone with the last two levels of its pyramid."""

    def __init__(self) -> None:
        from trainer.models.torchvision_detector import _SmallBackbone

        super().__init__()
        self.whole = _SmallBackbone()
        self.out_channels = self.whole.out_channels

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.whole(images)
        return {"1": found["1"], "2": found["2"]}


@pytest.fixture
def small_kinds(small_masks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give RetinaNet and SSDLite two levels: to export the others takes half a minute and shows nothing new."""
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD
    from torchvision.models.detection.ssdlite import SSDLiteHead

    def retinanet(*, num_classes: int, **_: object) -> object:
        anchors = AnchorGenerator(((16,), (32,)), ((1.0,),) * 2)
        return detection.RetinaNet(TwoLevels(), num_classes, anchor_generator=anchors)

    def ssdlite(*, num_classes: int, **_: object) -> object:
        anchors = DefaultBoxGenerator([[2, 3], [2, 3]], min_ratio=0.2, max_ratio=0.95)
        counts = anchors.num_anchors_per_location()
        head = SSDLiteHead([64, 64], counts, num_classes, torch.nn.BatchNorm2d)
        return SSD(TwoLevels(), anchors, (320, 320), num_classes, head=head, nms_thresh=0.55, topk_candidates=300)

    monkeypatch.setattr(detection, "retinanet_resnet50_fpn", retinanet)
    monkeypatch.setattr(detection, "ssdlite320_mobilenet_v3_large", ssdlite)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("small_kinds")
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
    trained = LoadedModel(config, ("background", "cat", "dog"), network, task_named("detect"), Path())
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
    (found, *_) = predict_images(load_best_model(tmp_path / "run"), [tmp_path / "val" / "0.jpg"])
    assert [name for name, _ in found.numbers] == ["left_eye_x", "left_eye_y", "right_eye_x", "right_eye_y"]
    points = [dict(of.numbers) for of in predict_images(load_best_model(tmp_path / "run"), turned(tmp_path))]
    assert points == [pytest.approx(points[0], abs=1e-3)] * 8
    assert evaluate.evaluate(tmp_path / "run").tta == "flip"
    assert "Correct keypoints in the best epoch" in (tmp_path / "run" / "report.html").read_text()
