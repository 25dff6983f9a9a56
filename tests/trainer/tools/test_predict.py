"""Predictions: in the order of the files, prepared as in validation, with a message for images that cannot be used."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from fakes import needs_gpu
from loaders import build_loader
from torch import Tensor

from augment.data.dataset import Split
from augment.recipe.plan import build_plan
from trainer.predictions.formats import as_csv
from trainer.predictions.predict import Prediction, list_images, predict
from trainer.run.best_model import load_best_model
from trainer.tools.predict import main


@pytest.fixture
def bad(tmp_path):
    file = tmp_path / "bad.jpg"
    file.write_bytes(b"")
    return file


def by_hand(run, files, *views):
    """Return the probabilities of files, (N, classes): the mean over views of each image."""
    trained = load_best_model(run)
    plan = build_plan(trained.config.aug, "val")
    (batch,) = build_loader(plan, Split(files, (0,) * len(files)), batch_size=len(files), seed=0)
    with torch.inference_mode():
        network = trained.network.eval()
        return torch.stack([network(view(batch.images)).softmax(dim=1) for view in views]).mean(dim=0)


@pytest.mark.parametrize(
    ("tta", "views"), [(None, [Tensor.contiguous]), ("flip", [Tensor.contiguous, lambda images: images.flip(3)])]
)
def test_probabilities_are_those_of_validation_in_the_order_of_the_files(finished_run, photos, tta, views):
    files = (*photos[3:], *photos[:3], photos[4])
    # More batches than one, the last one smaller.
    predictions = predict(load_best_model(finished_run, ["fit.batch_size=3"], tta=tta), files, top=2)
    shares = by_hand(finished_run, files, *views)
    assert [prediction.file for prediction in predictions] == list(files)
    for prediction, row in zip(predictions, shares, strict=True):
        values, places = row.topk(2)
        assert [name for name, _ in prediction.classes] == [("blue", "green", "red")[i] for i in places]
        assert [share for _, share in prediction.classes] == pytest.approx(values.tolist(), abs=1e-5)
    assert len({share for prediction in predictions for _, share in prediction.classes}) > 6
    assert {len(prediction.classes) for prediction in predict(load_best_model(finished_run), photos[:1], top=99)} == {
        3
    }  # all there are


def test_folders_are_searched_and_the_order_kept(photos, tmp_path):
    deep = tmp_path / "b" / "deeper"
    deep.mkdir(parents=True)
    for name in ("2.png", "10.PNG", "3.heic", ".hidden.png", "notes.txt"):
        shutil.copy(photos[0], deep / name)
    expected = [photos[1], *(deep / name for name in ("10.PNG", "2.png", "3.heic")), photos[0]]
    assert list_images([photos[1], tmp_path, photos[0]]) == expected


@needs_gpu
def test_the_gpu_predicts_the_same(finished_run, photos):
    options = ["fit.device=cuda", "fit.precision=bf16", "fit.batch_size=4"]
    on_gpu = predict(load_best_model(finished_run, options, tta="flip"), photos)
    for ours, theirs in zip(on_gpu, predict(load_best_model(finished_run, tta="flip"), photos), strict=True):
        assert ours.file == theirs.file
        assert dict(ours.classes) == pytest.approx(dict(theirs.classes), abs=0.05)


# --- the command line ---


def test_the_table_shows_file_names_literally(finished_run, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(photos[0], "[red] a=b.png")
    assert main([str(finished_run), "[red] a=b.png", "--top", "1"]) == 0
    output = capsys.readouterr().out
    assert "[red] a=b.png" in output
    assert output.splitlines()[1].replace("┃", " ").split() == ["image", "class"]
    ((name, share),) = predict(load_best_model(finished_run), photos[:1], top=1)[0].classes
    assert f"{name} {share:.1%}" in output


def test_csv_json_and_the_exit_code_for_bad_images(finished_run, photos, bad, tmp_path, capsys):
    files = [photos[0], bad, photos[1]]
    assert main([str(finished_run), *map(str, files), "--csv", str(tmp_path / "x" / "a.csv"), "--json", "-"]) == 1
    printed = capsys.readouterr()
    assert f"{bad} is empty (0 bytes)\n" in printed.err
    assert "1 of 3 images cannot be used" in printed.err
    rows = json.loads(printed.out)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert rows[1] == {"file": str(bad), "error": "is empty (0 bytes)"}
    table = list(csv.DictReader((tmp_path / "x" / "a.csv").read_text().splitlines()))
    assert [row["error"] for row in table] == ["", "is empty (0 bytes)", ""]
    for row, line in zip((rows[0], rows[2]), (table[0], table[2]), strict=True):
        for place, entry in enumerate(row["classes"], start=1):
            assert line[f"class_{place}"] == entry["class"]
            assert float(line[f"probability_{place}"]) == pytest.approx(entry["probability"], rel=1e-4)


@pytest.mark.parametrize(("given", "problem"), [([], "FILE_OR_FOLDER"), (["no.jpg"], "no.jpg: no such file")])
def test_images_are_looked_for_before_the_model_is_loaded(given, problem, finished_run, capsys, monkeypatch):
    monkeypatch.setattr("trainer.tools.predict.load_best_model", lambda *_, **__: pytest.fail("loads the model"))
    with pytest.raises(SystemExit, match="2"):
        main([str(finished_run), *given])
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("predictions", "expected"),
    [
        (  # names are no formulas
            [Prediction(Path("=a.jpg"), (("@b", 0.5),)), Prediction(Path("-c.jpg"), error="is broken")],
            "file,error,class_1,probability_1\n'=a.jpg,,'@b,0.5\n'-c.jpg,is broken\n",
        ),
        ([Prediction(Path("a.jpg"), numbers=(("=x", -1.5),))], "file,error,'=x\na.jpg,,-1.5\n"),
        (
            [Prediction(Path("a,b.jpg"), (("cat", 0.5), ("dog", 0.25)))],
            'file,error,class_1,probability_1,class_2,probability_2\n"a,b.jpg",,cat,0.5,dog,0.25\n',
        ),
    ],
)
def test_csv(predictions, expected):
    assert as_csv(predictions) == expected
