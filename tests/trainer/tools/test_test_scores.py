"""Test scores: measured once, kept apart from validation scores, and never used to choose."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import draw_classes
from sweeps import write_run

from augment.cli.compose import compose
from trainer.cli.main import main as command
from trainer.report.page import render
from trainer.report.run_content import read_record
from trainer.run.config.equality import identity
from trainer.run.config.schema import load_config, parse_config
from trainer.run.folder.reader import find_runs
from trainer.sweeps.compare.command import main as compare
from trainer.sweeps.comparison import compare_runs
from trainer.sweeps.run_groups import basis_of
from trainer.tools.evaluate import evaluate, main

QUICK = ("aug=none", "aug.size=16", "fit.batch_size=6", "fit.epochs=1", "fit.device=cpu", "fit.threads=1", "model=cnn")
BARE = ("callbacks.plots=null", "callbacks.progress_bar=null")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images in three splits, and a run on them."""
    root = tmp_path_factory.mktemp("tested")
    draw_classes(root / "images", count=4)
    shutil.copytree(root / "images" / "val", root / "images" / "final")
    (root / "images" / "final" / "bee" / "0.png").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        given = ("data=folder", "data.root=images", "data.test_dir=final", "hydra.run.dir=run", *QUICK, *BARE)
        assert command(given) == 0
    return root


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str], tool: Any = main) -> str:
    with pytest.raises(SystemExit) as ended:
        tool(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_test_split_is_scored_apart(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(place)
    files = {file.name for file in Path("run").iterdir()}
    assert main(["run", "--split", "test"]) == 0
    printed = capsys.readouterr().out
    assert "test_accuracy" in printed
    assert "val_" not in printed
    assert {file.name for file in Path("run").iterdir()} - files == {
        "test_scores.json", "test_scores.png", "evaluations.jsonl",
    }  # fmt: skip
    written = json.loads(Path("run/test_scores.json").read_text())
    assert (written["images"], written["epoch"]) == (7, 0)
    assert not [key for key in written if key.startswith("val_")]
    assert evaluate(Path("run"), split="val").images == evaluate(Path("run")).images == 8
    page = render(read_record(Path("run")))
    assert "Test scores" in page
    assert "on 7 images of the test split" in page
    (run,) = find_runs([Path("run")])
    assert run.test_scores["test_accuracy"] == written["test_accuracy"]
    assert not [key for row in (*run.rows, run.last, run.summary.best) for key in row if key.startswith("test_")]


def test_a_folder_and_a_split_contradict_each_other(place: Path, capsys: Any) -> None:
    assert "Remove one of them" in failed([str(place / "run"), str(place), "--split", "test"], capsys)


def test_a_run_made_before_test_splits(finished_run: Path, capsys: Any, monkeypatch: Any, place: Path) -> None:
    monkeypatch.chdir(place)
    assert "does not exist" in failed([str(finished_run), "--split", "test"], capsys)  # its images are gone
    values = load_config(finished_run)["data"]
    assert not [key for key in values if key.startswith("test")]
    copy = Path(shutil.copytree("run", "older"))
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("  test_dir: final\n", ""))
    assert "test" in failed([str(copy), "--split", "test"], capsys)
    assert main([str(copy), "--split", "test", "data.test_dir=final"]) == 0
    # It was trained on the images that this would choose.
    text = failed([str(copy), "--split", "test", "data.test_fraction=0.2"], capsys)
    assert "data.test_fraction: 0.2, but the run had null" in text


def test_a_missing_test_split_is_found_before_training(place: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(place)
    given = ["data=folder", "data.root=images", "data.test_dir=misspelled", "hydra.run.dir=other", *QUICK]
    assert "misspelled" in failed(given, capsys, command)
    assert not Path("other").exists()


def test_test_scores_cannot_be_monitored(place: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(place)
    given = ["data=folder", "data.root=images", *QUICK]
    monitor = "callbacks.checkpoint.monitor=test_accuracy"
    assert "callbacks.checkpoint.monitor: " in failed([*given, monitor], capsys, command)
    search = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.metrics=[test_accuracy]", "fit.lr=0.1,0.2"]
    assert "hydra.sweeper.metrics: test_accuracy" in failed([*search, *given], capsys, command)


def test_test_data_do_not_identify_a_run(tmp_path: Path) -> None:
    """Training does not use them, but it lacks the images that a fraction holds out."""

    def plain(*settings: str) -> dict[str, Any]:
        return identity(parse_config(compose([f"data.root={tmp_path}", "data=folder", *QUICK, *settings])).resolved)

    assert plain() == plain("data.test_dir=final")
    assert plain() != plain("data.test_fraction=0.2")


# --- compare ---


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two configurations. The one with the better validation score has the worse test score."""
    for number, (rate, score) in enumerate([(0.1, 0.5), (0.1, 0.6), (0.2, 0.8), (0.2, 0.9)]):
        run = write_run(tmp_path / str(number), score, {"fit.lr": rate, "seed": number % 2})
        if number != 1:
            scores = {"epoch": 0, "test_accuracy": 1 - score, "images": 10}
            (run / "test_scores.json").write_text(json.dumps(scores))
    return tmp_path


def test_compare_shows_test_scores_without_ranking_by_them(
    runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert compare([str(runs)]) == 0
    before = capsys.readouterr().out
    assert "test_accuracy" not in before
    assert compare([str(runs), "--split", "test", "--out", str(runs / "out.json")]) == 0
    shown = capsys.readouterr().out
    first, second = (line for line in shown.splitlines() if "fit.lr=0." in line and "│" in line)
    assert ("fit.lr=0.2" in first, "0.1500 (n = 2)" in first, "0.5000 (n = 1)" in second) == (True, True, True)
    groups = json.loads((runs / "out.json").read_text())["groups"]
    assert [group["test_accuracy"] for group in groups] == [pytest.approx([0.2, 0.1]), [0.5]]
    without, _ = compare_runs(find_runs([runs]))
    assert without
    assert [group["verdict"] for group in without.plain()["groups"]] == [group["verdict"] for group in groups]


def test_test_scores_of_one_seed_count_once(runs: Path) -> None:
    run = write_run(runs / "again", 0.7, {"fit.lr": 0.2, "seed": 0})
    (run / "test_scores.json").write_text(json.dumps({"epoch": 0, "test_accuracy": 0.4}))
    comparison, _ = compare_runs(find_runs([runs]))
    assert comparison
    assert comparison.with_test().plain()["groups"][0]["test_accuracy"] == pytest.approx([0.3, 0.1])


def test_compare_does_not_choose_by_test_scores(runs: Path, tmp_path: Path, capsys: Any) -> None:
    text = failed([str(runs), "--metric", "test_accuracy"], capsys, compare)
    assert "--split test" in text
    for file in runs.glob("*/test_scores.json"):
        file.write_text(json.dumps({"epoch": 3, "test_accuracy": 0.5}))  # of an earlier best epoch
    assert "evaluate RUN --split test" in failed([str(runs), "--split", "test"], capsys, compare)


def test_runs_with_other_test_data_can_be_compared(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", 0.5, {"data.test_dir": "x"})
    other = write_run(tmp_path / "b", 0.5, {"data.test_fraction": 0.2})
    held = write_run(tmp_path / "c", 0.5, {"data.test_fraction": 0.2, "data.val_fraction": 0.2})
    bases = [basis_of(run) for run in find_runs([one, other, held])]
    assert bases[0] == bases[1]
    assert bases[2]["data.test_fraction"] == "0.2"


def test_damaged_test_scores_do_not_count(place: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    copy = Path(shutil.copytree("run", "damaged"))
    for content in ("[", *(f'{{"epoch": 0, "test_accuracy": {value}}}' for value in ('"a"', "[1]", "9" * 400, "NaN"))):
        (copy / "test_scores.json").write_text(content)
        (run,) = find_runs([copy])
        assert "test_accuracy" not in run.test_scores
        render(read_record(copy))
