"""Evaluations: scores by hand, and what the command writes."""

import json
import math
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from reports import counted

from augment.data.sources import parse_data
from augment.support.errors import UserError
from trainer.predictions.predict import predict
from trainer.report.command import main as report
from trainer.run.best_model import load_best_model
from trainer.tasks.classify import Classify
from trainer.tasks.registry import task_named
from trainer.tools.evaluate import evaluate, evaluated_split, main
from trainer.tools.predict import main as predict_main


def scored(confusion, names):
    samples = counted(confusion)
    right = sum(confusion[i][i] for i in range(len(names)))
    values = {"val_loss": 0.5, "val_accuracy": right / len(samples.index), "val_auroc": math.nan, "val_f1": 0.25}
    values |= {"val_balanced_accuracy": 0.75, "val_calibration_error": 0.125}
    return task_named("classify").evaluate(values, samples, names)


def test_scores_of_classes_by_hand():
    scores = scored([[50, 0, 0], [10, 40, 0], [0, 0, 0]], ("cat", "dog", "bird"))
    # Wilson's interval of 90 in 100; with all right, it stays open.
    assert scores.values["interval"] == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert scored([[20]], ("cat",)).values["interval"] == pytest.approx([0.8389, 1.0], abs=1e-4)
    assert scores.per_class == {"cat": (50, 50), "dog": (40, 50), "bird": (0, 0)}
    assert [row[3:5] for row in scores.table.rows] == [("1.0000", "0.8333"), ("0.8000", "1.0000"), ("", "")]
    assert [row[5:] for row in scores.table.rows] == [("0.8000", "0.9091"), ("1.0000", "0.8889"), ("1.0000", "")]
    assert scores.class_rates["dog"] == {
        "recall": 0.8, "precision": 1, "specificity": 1, "f1": pytest.approx(8 / 9),
    }  # fmt: skip
    assert scores.sentence == "val_accuracy 0.9000 (95% interval 0.8256 to 0.9448, 100 images)"
    assert {"val_loss": 0.5, "val_f1": 0.25, "val_balanced_accuracy": 0.75}.items() <= scores.others.items()
    assert "val_accuracy" not in scores.others
    assert "val_auroc" in scores.values


def test_unknown_scores_are_left_out_of_the_printed_table(finished_run, images_by_class, capsys, monkeypatch):
    score = Classify.evaluate
    unknown = {"val_cohen_kappa": math.nan}
    monkeypatch.setattr(Classify, "evaluate", lambda task, values, *given: score(task, values | unknown, *given))
    assert main([str(finished_run), str(images_by_class)]) == 0
    printed = capsys.readouterr().out
    assert "kappa" not in printed
    assert "val_loss" in printed


def test_the_table_of_many_classes_shows_the_worst():
    names = [str(number) for number in reversed(range(61))]
    rows = [[0] * 62 for _ in range(62)]
    for i, name in enumerate(names):
        rows[i][i], rows[i][61] = int(name), 100 - int(name)
    scores = scored(rows, [*names, "none"])
    assert [row[0] for row in scores.table.rows] == sorted(map(str, range(60)), key=int)
    assert scores.table.title == "the 60 of 62 classes with the lowest recall"
    assert len(scores.per_class) == 62


@pytest.fixture
def images_by_class(photos, tmp_path):
    """Six images in three folders named as the classes of `finished_run`."""
    for place, photo in enumerate(photos):
        folder = tmp_path / "mine" / ("red", "green", "blue")[place % 3]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, folder)
    return tmp_path / "mine"


def test_a_folder_is_scored_without_the_data_of_the_run(finished_run, images_by_class, capsys, caplog):
    (next(images_by_class.iterdir()) / "no.heic").touch()
    assert main([str(finished_run), str(images_by_class), "--tta", "flip"]) == 0
    written = json.loads((finished_run / "evaluation-mine.json").read_text())
    assert (written["images"], written["tta"]) == (6, "flip")
    assert "left out 1 of 7 images" in caplog.text
    assert "tta flip" in capsys.readouterr().out
    assert main([str(finished_run), str(images_by_class), "fit.batch_size=2"]) == 0
    earlier = [json.loads(line) for line in (finished_run / "evaluations.jsonl").read_text().splitlines()][-2:]
    assert [(line["tta"], line["overrides"], line["data"]) for line in earlier] == [
        ("flip", [], str(images_by_class)),
        ("none", ["fit.batch_size=2"], str(images_by_class)),
    ]
    assert earlier[0]["val_loss"] == written["val_loss"]
    assert "per_class" not in earlier[0]
    assert main([str(finished_run), str(images_by_class.rename(images_by_class.with_name("other.json")))]) == 0
    assert (finished_run / "evaluation-other.json").is_file()
    images_by_class.with_name("other.json").rename(images_by_class)

    files = sorted(images_by_class.rglob("*.png"))
    shares = [dict(found.classes) for found in predict(load_best_model(finished_run, tta="flip"), files)]
    right = [share[file.parent.name] for file, share in zip(files, shares, strict=True)]
    assert written["val_loss"] == pytest.approx(-sum(map(math.log, right)) / 6, rel=1e-4)
    plain = evaluate(finished_run, images_by_class)
    assert plain.tta == "none"
    assert plain.values["val_loss"] != pytest.approx(written["val_loss"], rel=1e-6)
    flipped = evaluate(finished_run, images_by_class, ["fit.tta=flip"])
    assert flipped.values["val_loss"] == pytest.approx(written["val_loss"])


@pytest.mark.parametrize(("classes", "fits"), [(("target",), True), (("score",), True), (("score", "age"), False)])
def test_a_single_number_may_have_had_another_name(classes, fits, photos, tmp_path):
    (tmp_path / "val.csv").write_text(f"path,score\n{photos[0]},0.5\n")
    data = parse_data({"source": "filelist", "train": str(tmp_path / "val.csv"), "val": str(tmp_path / "val.csv")})
    trained = SimpleNamespace(config=SimpleNamespace(data=data), classes=classes, task=SimpleNamespace(name="regress"))
    with nullcontext() if fits else pytest.raises(UserError, match="the classes differ from the model's"):
        assert evaluated_split(trained, None).targets == ((0.5,),)


@pytest.mark.parametrize(("value", "part"), [(math.nan, "weight"), (math.inf, "weight"), (math.inf, "")])
def test_a_model_of_nan_is_rejected(value, part, finished_run, images_by_class, tmp_path, capsys):
    run = shutil.copytree(finished_run, tmp_path / "copy")
    state = torch.load(run / "best.pt", weights_only=True)
    last = list(state["model"])[-1]  # the bias of the head
    for name, tensor in state["model"].items():
        if tensor.is_floating_point() and name.endswith(part or last):
            tensor.fill_(value)
    torch.save(state, run / "best.pt")
    for tool in (main, predict_main):
        with pytest.raises(SystemExit) as ended:
            tool([str(run), str(images_by_class)])
        assert ended.value.code == 2
        assert "best.pt: the model cannot be used" in capsys.readouterr().err


def test_links_that_are_not_read_or_written_do_not_matter(finished_run, images_by_class, tmp_path, capsys):
    run = shutil.copytree(finished_run, tmp_path / "outputs" / "run")
    (run / "wandb" / "logs").mkdir(parents=True)
    (run / "wandb" / "logs" / "core.log").symlink_to("/dev/null")  # as wandb makes them
    (tmp_path / "outputs" / "latest").symlink_to(tmp_path)
    assert main([str(run), str(images_by_class)]) == 0
    assert report([str(run)]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "outputs"), str(images_by_class)])
    assert ended.value.code == 2
    assert "no config.yaml" in capsys.readouterr().err


def test_another_source_has_settings_of_its_own(finished_run):
    """None of those of the run's source, some of which it does not know; all else is the run's."""
    config = load_best_model(finished_run, ["data=sample", "data.dir=elsewhere"]).config
    assert config.data == parse_data({"source": "sample", "dir": "elsewhere"})
    assert config.aug.size == (16, 20)


@pytest.mark.parametrize("override", ["hydra.x=1", "hydra/launcher=ray", "fit.limit_batches=1", "data.range=[0,1]"])
def test_overrides_without_an_effect_are_rejected(override, finished_run, images_by_class, capsys):
    for tool, images in ((main, images_by_class), (predict_main, images_by_class)):
        with pytest.raises(SystemExit) as ended:
            tool([str(finished_run), str(images), override])
        assert ended.value.code == 2
        assert f"{override.partition('=')[0]}: has no effect here. Remove it." in capsys.readouterr().err
