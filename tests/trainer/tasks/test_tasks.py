"""What each task measures and monitors, and complete runs of labels and of numbers."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import CLASSES
from photos import draw_photo
from PIL import Image
from rich.console import Console
from runs import read_metrics

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.predictions.formats import as_json
from trainer.predictions.predict import predict as predict_images
from trainer.report.page import render
from trainer.report.run_content import read_record
from trainer.run.best_model import load_best_model
from trainer.run.config.checks import check_config
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.tasks.metric import PACE, columns_of
from trainer.tasks.registry import ALL_MONITORED, best_row, monitored, smaller_is_better, task_named, task_of
from trainer.tools import evaluate, predict

TASKS = [task_named(name) for name in ("classify", "multilabel", "regress")]

QUICK = ["aug.size=16", "fit.batch_size=6", "fit.epochs=3", "fit.device=cpu", "fit.threads=1"]


def test_each_task_measures_what_it_monitors() -> None:
    for task, monitor in zip(TASKS, ("val_accuracy", "val_map", "val_loss"), strict=True):
        measured = {column.key for column in columns_of(task.measured(("a", "b")))}
        assert {monitor, f"val_{task.score}"} <= measured <= set(ALL_MONITORED)
        assert monitored("auto", task) == monitor
        assert monitored("train_loss", task) == "train_loss"
    assert [task.display(()).share for task in TASKS] == [True, True, False]
    with pytest.raises(UserError, match=r"^unknown task 'regres'\. Did you mean 'regress'\?"):
        task_named("regres")


def test_the_best_row() -> None:
    rows = [{"epoch": 0.0, "a": 2.0, "val_loss": 2.0}, {"epoch": 1.0, "a": 3.0, "val_loss": math.nan}, {"a": 3.0}]
    assert best_row(rows, "a") == rows[1]
    assert best_row(rows, "val_loss") == rows[0]
    assert best_row(rows, "b") == {}
    smaller = {key for key in ALL_MONITORED if smaller_is_better(key)}
    assert smaller >= {"train_loss", "val_loss", "val_brier", "val_calibration_error", "val_mae", "val_rmse"}
    assert not smaller & {"auto", "train_accuracy", "val_accuracy", "val_top5", "val_map", "val_r2", "val_f1"}
    assert [column.key for column in PACE if smaller_is_better(column.key)] == ["waiting", "gpu_memory_mib", "seconds"]


def test_rows_identify_the_task() -> None:
    found = {
        "": "classify",
        "train_loss val_accuracy": "classify",
        "val_map val_f1": "multilabel",
        "train_mae": "regress",
    }
    for keys, task in found.items():
        assert task_of([{"epoch": 0.0}, dict.fromkeys(keys.split(), 0.0)]).name == task


def test_a_caption_names_what_is_mixed() -> None:
    caption = task_named("classify").caption
    assert (caption(2, CLASSES), caption(1, ())) == ("cat", "1")
    assert caption([0.3, 0.0, 0.7], CLASSES) == "cat 70%, ant 30%"
    assert caption([0.0, 0.004, 0.996], CLASSES) == "cat 100%"
    assert caption([0.25, 0.75], ()) == "1 75%, 0 25%"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images that are red, green, both or neither, listed by labels and by how much of each they have."""
    root = tmp_path_factory.mktemp("lists")
    rng = np.random.default_rng(0)
    labels, numbers = [], ["image,red,green"]
    for index in range(12):
        red, green = index % 2, index // 2 % 2
        photo = draw_photo(40, 30, index) // 3
        photo[..., 0] += 120 * red
        photo[..., 1] += 120 * green
        Image.fromarray(photo).save(root / f"{index}.png")
        labels.append(f"{index}.png {'red ' * red}{'green' * green}")
        numbers.append(f"{index}.png,{red + 0.1 * rng.random():.3f},{green}")
    (root / "labels.txt").write_text("\n".join(labels) + "\n")
    (root / "numbers.csv").write_text("\n".join(numbers) + "\n")
    return root


def fit(lists: Path, name: str, *settings: str) -> Path:
    """Train on a list and return the run's folder."""
    ours = ["data=filelist", f"data.train={lists / name}", f"data.val={lists / name}", *settings, *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(lists)  # below which the check of the files is kept
        config = parse_config(compose(ours))
        check_config(config)
        summary = train(config, lists / f"run-{name}", console=Console(quiet=True))
    assert summary.status == "finished"
    assert task_of([summary.last]).monitor in str(summary)
    return summary.folder


@pytest.fixture(scope="module")
def labels(lists: Path) -> Path:
    return fit(lists, "labels.txt", "data.multilabel=true")


@pytest.fixture(scope="module")
def numbers(lists: Path) -> Path:
    ours = ("data.targets=[red,green]", "fit.loss=huber", "fit.standardize=false")
    alone = ("fit.metrics=[r2_green]", "callbacks.checkpoint.monitor=val_mae_red")
    return fit(lists, "numbers.csv", *ours, *alone)


def test_a_run_of_labels(labels: Path) -> None:
    rows, best = read_metrics(labels), load(labels / BEST, BestModel)
    assert {key for key in rows[0] if key.startswith(("train_", "val_"))} == {"train_loss", "val_loss", "val_map"}
    assert (best.task, best.classes, best.row) == ("multilabel", ("green", "red"), best_row(rows, "val_map"))
    assert torch.equal(best.samples["index"].sort().values, torch.arange(12))
    assert (labels / "labels.png").is_file()
    assert not (labels / "confusion.png").exists()


def test_a_run_of_numbers(numbers: Path) -> None:
    rows, best = read_metrics(numbers), load(numbers / BEST, BestModel)
    assert {"train_loss", "train_mae", "train_rmse", "val_mae", "val_rmse", "val_mean_rmse", "val_r2"} < rows[0].keys()
    assert (best.task, best.classes, best.row) == ("regress", ("red", "green"), best_row(rows, "val_mae_red"))
    errors = (best.samples["output"] - best.samples["target"]).abs()
    assert best.row["val_mae"] == pytest.approx(errors.mean().item(), rel=1e-4)
    assert best.row["val_mae_red"] == pytest.approx(errors[:, 0].mean().item(), rel=1e-4)
    assert {"train_mae_red", "val_r2_green"} < rows[0].keys()
    assert not {"val_mae_green", "val_rmse_red", "train_r2_green"} & rows[0].keys()
    assert (numbers / "scatter.png").is_file()


def test_metrics_of_a_number_that_there_is_not(lists: Path) -> None:
    with pytest.raises(UserError, match=r"checkpoint\.monitor: val_mae_blue is not measured.*val_mae_green"):
        fit(lists, "numbers.csv", "data.targets=[red,green]", "callbacks.checkpoint.monitor=val_mae_blue")
    with pytest.raises(UserError, match=r"fit\.metrics: .* has no metric 'rmse_blue'.*Did you mean 'rmse_"):
        fit(lists, "numbers.csv", "data.targets=[red,green]", "fit.metrics=[rmse_blue]")
    assert (smaller_is_better("val_rmse_red"), smaller_is_better("val_r2_red")) == (True, False)


@pytest.mark.parametrize(
    ("name", "key", "each", "said"),
    [
        (
            "labels",
            "val_map",
            "average_precision",
            ("best validation mean average precision", "Worst label: ", "best F1"),
        ),
        ("numbers", "val_mae", "mae", ("mean absolute error of the best", "val mae, red", "Largest errors", "Scatter")),
    ],
)
def test_the_evaluation_and_the_report(
    name: str, key: str, each: str, said: tuple[str, ...], request: pytest.FixtureRequest, lists: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(lists)
    run = request.getfixturevalue(name)
    assert evaluate.main([str(run)]) == 0
    written, row = json.loads((run / "evaluation.json").read_text()), load(run / BEST, BestModel).row
    scores = {key: value for key, value in row.items() if key.startswith("val_")}
    assert {key: written[key] for key in scores} == pytest.approx(scores, rel=1e-4)
    assert ({"val_f1", "val_auroc"} <= written.keys()) is (name == "labels")
    if name == "numbers":
        alone = {f"val_mae_{unit}": values["mae"] for unit, values in written["per_class"].items()}
        assert {key: written[key] for key in alone} == pytest.approx(alone, rel=1e-4)
    assert np.mean([values[each] for values in written["per_class"].values()]) == pytest.approx(row[key], rel=1e-4)
    assert (run / "evaluation.png").is_file()
    listed = lists / {"labels": "labels.txt", "numbers": "numbers.csv"}[name]
    again = evaluate.evaluate(run, listed).values
    assert {key: again[key] for key in scores} == pytest.approx(scores, rel=1e-4)
    part = lists / f"part-{name}" / listed.name
    part.parent.mkdir()
    for image in lists.glob("*.png"):
        (part.parent / image.name).symlink_to(image)
    part.write_text("\n".join(line for line in listed.read_text().splitlines() if "green" not in line or "," in line))
    assert evaluate.evaluate(run, part.parent).images == {"labels": 6, "numbers": 12}[name]
    (part.parent / f"more{part.suffix}").touch()
    with pytest.raises(UserError, match="Use the file"):
        evaluate.evaluate(run, part.parent)
    monkeypatch.setattr("trainer.report.run_content.load", None)  # a finished run has written what its page shows
    record = read_record(run)
    assert not record.run.notes
    assert record.best_pass
    assert record.run.facts.display == record.display
    page = render(record)
    for part in (*said, f"{100 * row[key]:.1f}%" if name == "labels" else f"{row[key]:.4g}"):
        assert part in page
    assert "Confusion matrix" not in page


def test_predicted_labels(labels: Path, lists: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [lists / "3.png", lists / "0.png"]
    trained = load_best_model(labels)
    every = predict_images(trained, files, threshold=0.0)
    samples = load(labels / BEST, BestModel).samples
    shares = dict(zip(samples["index"].tolist(), samples["output"].sigmoid().tolist(), strict=True))
    for found, place in zip(every, (3, 0), strict=True):
        assert dict(found.classes) == pytest.approx(dict(zip(("green", "red"), shares[place], strict=True)), abs=1e-4)
        assert found.unit == "label"
    middle = sum(share for _, share in every[0].classes) / 2
    (alone,) = predict_images(trained, files[:1], threshold=middle)  # in a batch of one, rounded otherwise
    assert dict(alone.classes) == pytest.approx(dict(every[0].classes[:1]), abs=1e-6)
    assert [len(found.classes) for found in predict_images(trained, files, top=1)] == [1, 1]
    assert all(s >= 0.5 for found in predict_images(trained, files) for _, s in found.classes)
    assert predict.main([str(labels), *map(str, files), "--threshold", "1e-6"]) == 0
    assert "red" in capsys.readouterr().out


def test_predicted_numbers(numbers: Path, lists: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main([str(numbers), str(lists / "5.png"), "--csv", "-"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    samples = load(numbers / BEST, BestModel).samples
    expected = samples["output"][samples["index"].tolist().index(5)].tolist()
    assert [float(row["red"]), float(row["green"])] == pytest.approx(expected, abs=1e-3)
    trained = load_best_model(numbers)
    (found,) = json.loads(as_json(predict_images(trained, [lists / "5.png"])))
    assert list(found["numbers"]) == ["red", "green"]
    assert predict.main([str(numbers), str(lists / "5.png")]) == 0
    with pytest.raises(UserError, match=r"^--threshold: .* predicts numbers"):
        predict_images(trained, [lists / "5.png"], threshold=0.5)
    with pytest.raises(UserError, match=r"^--top: .* predicts numbers"):
        predict_images(trained, [lists / "5.png"], top=1)
