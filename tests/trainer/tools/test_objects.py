"""Runs of boxes and of points from the command line: training, resuming, evaluation, predictions."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from annotated import coco, turned
from PIL import Image
from runs import QUIET, rows_of

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.predictions.formats import as_csv, as_json
from trainer.predictions.predict import predict as predict_images
from trainer.run.best_model import load_trained
from trainer.run.config.checks import check_config
from trainer.run.config.schema import Config, parse_config
from trainer.run.train import train
from trainer.tools import evaluate, predict
from trainer.tools.export.write import export_run

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
def test_what_boxes_cannot_have_is_rejected(folder: Path, overrides: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_config(config_of(folder, *overrides))


def test_a_detector_is_not_exported(run: Path) -> None:
    options = Namespace(to="torch", preprocessing="inside", out=None, limit=None, unchecked=True, trust=False)
    with pytest.raises(UserError, match=r"^export: this model predicts boxes"):
        export_run(options, run, None, ())


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
