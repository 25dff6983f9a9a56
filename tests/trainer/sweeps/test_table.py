"""The end of a sweep: folders read, jobs in order, means over seeds; all from folders written by hand."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from trainer.run.folder.reader import find_runs
from trainer.sweeps.comparison import compare_runs, report_sweep

BETTER = 0.0625  # by how much the best epoch of a job is better than its last one


def write_job(folder: Path, name: str, overrides: list[str], accuracy: float | None = None, **summary: Any) -> None:
    """Write what a run leaves behind; without an accuracy (of the last epoch) or a status only what Hydra does."""
    run = folder / name
    (run / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(overrides), run / ".hydra" / "overrides.yaml")
    if accuracy is not None or summary:
        OmegaConf.save(OmegaConf.from_dotlist([one.lstrip("+") for one in overrides]), run / "config.yaml")
        best, last = {}, {}
        if accuracy is not None:
            best, last = {"epoch": 0, "val_accuracy": accuracy + BETTER}, {"epoch": 1, "val_accuracy": accuracy}
        values = {"status": "finished", "folder": str(run), "epochs": 2, "best": best, "last": last}
        values |= {"seconds": 3.4, "error": ""}
        (run / "summary.json").write_text(json.dumps(values | summary))


def printed(folder: Path) -> tuple[list[str], bool]:
    """Return the lines of the table, stripped of rulers and of double spaces, and whether all finished."""
    console = Console(file=StringIO(), width=200)
    finished = report_sweep(folder, console)
    assert isinstance(console.file, StringIO)
    rows = [line.strip("│┃ ") for line in console.file.getvalue().splitlines()]
    rows = [row.replace("│", "|").replace("┃", "|") for row in rows if row and row[0] not in "┏┡└"]
    return [" ".join(row.split()) for row in rows], finished


def jobs_in(folder: Path) -> list[dict[str, Any]]:
    printed(folder)
    jobs: list[dict[str, Any]] = json.loads((folder / "sweep.json").read_text())["jobs"]
    return jobs


def test_the_best_comes_first_and_those_without_a_score_last(tmp_path: Path) -> None:
    for name, accuracy in [("0", 0.25), ("1", 0.75), ("2", 0.5), ("4", 0.75), ("6", 0.0)]:
        write_job(tmp_path, name, [f"++fit.lr={name}"], accuracy)
    write_job(tmp_path, "3", ["++fit.lr=3"], status="failed", error="ValueError: bad")
    write_job(tmp_path, "5", ["++fit.lr=5"])
    jobs = jobs_in(tmp_path)
    assert [job["name"] for job in jobs] == ["1", "4", "2", "0", "6", "3", "5"]
    assert [(job["status"], job["last"]) for job in jobs[-2:]] == [("failed", None), ("planned", None)]
    assert (jobs[0]["best"], jobs[-2]["error"]) == (0.75 + BETTER, "ValueError: bad")


# --- the table ---


def test_the_table_of_a_sweep(tmp_path: Path) -> None:
    write_job(tmp_path, "0", ["+aug=imagenette", "++fit.lr=0.1"], 0.812345, seconds=9.6)
    write_job(tmp_path, "1", ["+aug=imagenette", "++fit.lr=0.2"], 0.9, seconds=100.4)
    lines, finished = printed(tmp_path)
    assert lines == [
        "2 jobs by val_accuracy of the last epoch, best first",
        "job | varied settings | last | best | seconds | status",
        "1 | fit.lr=0.2 | 0.9000 | 0.9625 | 100 | finished",
        "0 | fit.lr=0.1 | 0.8123 | 0.8748 | 10 | finished",
        "One seed cannot rule out chance. To compare settings, add seed=0,1,2,3,4 to the sweep.",
        str(tmp_path),
    ]
    assert finished


@pytest.mark.parametrize("status", ["failed", "interrupted", None])
def test_a_job_that_did_not_finish_is_named_and_tells(status: str | None, tmp_path: Path) -> None:
    write_job(tmp_path, "0", ["++fit.lr=0.1"], 0.8)
    summary: dict[str, Any] = {} if status is None else {"status": status, "error": "NonFiniteLossError: nan at step 3"}
    write_job(tmp_path, "1", ["++fit.lr=9"], **summary)
    write_job(tmp_path, "2", ["++fit.lr=8"], **summary)
    lines, finished = printed(tmp_path)
    assert not finished
    if status is None:
        assert "1 | fit.lr=9 | | | 0 | planned" in lines
    else:
        assert f"1 | fit.lr=9 | | | 3 | {status}" in lines
        assert f"{status} (1, 2): NonFiniteLossError: nan at step 3" in lines


def test_means_over_seeds_by_hand(tmp_path: Path) -> None:
    scores = {("0", 0): 0.5, ("0", 1): 0.7, ("0", 2): 0.6, ("0.2", 0): 0.9, ("0.2", 1): 0.8, ("0.2", 2): 0.7}
    for number, ((p, seed), accuracy) in enumerate(scores.items()):
        write_job(tmp_path, str(number), ["++fit.epochs=2", f"++aug.train.rotate.p={p}", f"++seed={seed}"], accuracy)
    lines, _ = printed(tmp_path)
    assert "3 | aug.train.rotate.p=0.2 seed=0 | 0.9000 | 0.9625 | 3 | finished" in lines
    assert lines[-7:] == [
        "last val_accuracy",
        "configuration | n | mean | std | 95% interval of the mean | difference | p",
        # Where (m - 0.8) ** 2 = 4.3027 ** 2 * 0.1 ** 2 / 3 * m (1 - m) / 0.16, with t for two degrees of freedom.
        "aug.train.rotate.p=0.2 | 3 | 0.8000 | 0.1000 | 0.4896..0.9434 | +20.0 points | .18",
        "aug.train.rotate.p=0 | 3 | 0.6000 | 0.1000 | 0.3570..0.8020 | baseline",
        "Compared with aug.train.rotate.p=0, the first configuration in the order of the runs:",
        # Differences of 0.4, 0.1 and 0.1 by seed: mean 0.2, standard deviation 0.1732, t = 2.
        "aug.train.rotate.p=0.2: no difference beyond chance (+20.0 points, 95% interval -23.0 to 63.0, p = .18, "
        "3 seeds, paired). Detecting 20.0 points needs about 6 more seeds.",
        str(tmp_path),
    ]
    compared = json.loads((tmp_path / "sweep.json").read_text())["comparison"]
    assert compared["baseline"] == "aug.train.rotate.p=0"
    assert compared["groups"][0]["difference"]["p"] == pytest.approx(0.1835, abs=1e-4)
    assert "- aug.train.rotate.p=0.2: no difference beyond chance" in (tmp_path / "sweep.md").read_text()


def test_folds_are_grouped_as_seeds_are(tmp_path: Path) -> None:
    scores = {("0.1", 0, 0): 0.5, ("0.1", 1, 0): 0.7, ("0.1", 0, 1): 0.5, ("0.1", 1, 1): 0.7, ("1", 0, 0): 0.9}
    for number, ((fraction, fold, seed), accuracy) in enumerate(scores.items()):
        own = [f"++data.fraction={fraction}", f"++data.fold={fold}", f"++seed={seed}"]
        write_job(tmp_path, str(number), ["++data.folds=2", *own], accuracy)
    lines, _ = printed(tmp_path)
    assert lines[-7] == "last val_accuracy"
    assert lines[-4].startswith("data.fraction=0.1 | 4 in 2 folds | 0.6000 | 0.1155 | ")
    assert lines[-2] == "data.fraction=1: one fold, which cannot rule out chance. Also run data.fold=1."


def test_the_tables_are_written_down(tmp_path: Path) -> None:
    for seed, accuracy in enumerate([0.5, 0.6]):
        write_job(tmp_path, str(seed), [f"++seed={seed}"], accuracy)
    write_job(tmp_path, "2", ["++seed=2"], status="failed", error="ValueError: a | b\nc")
    printed(tmp_path)
    assert (tmp_path / "sweep.md").read_text().splitlines() == [
        "3 jobs by val_accuracy of the last epoch, best first",
        "",
        "| job | varied settings | last | best | seconds | status |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        "| 1 | seed=1 | 0.6000 | 0.6625 | 3 | finished |",
        "| 0 | seed=0 | 0.5000 | 0.5625 | 3 | finished |",
        "| 2 | seed=2 |  |  | 3 | failed |",
        "",
        "last val_accuracy",
        "",
        "| configuration | n | mean | std | 95% interval of the mean | difference | p |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {tmp_path / '0'} | 2 | 0.5500 | 0.0707 | 0.1261..0.9119 | baseline |  |",
        "",
        "There is only one configuration, so nothing is compared.",
        "",
        "- Left out: failed (2).",
        r"- failed (2): ValueError: a \| b c",
    ]


def test_of_losses_the_smallest_is_the_best(tmp_path: Path) -> None:
    for name, value in (("0", 0.1), ("1", 0.5), ("2", 0.3)):
        values = {"epoch": 1, "val_loss": value, "val_mae": value}
        write_job(tmp_path, name, [f"++fit.lr={name}"], best=values, last=values, status="finished")
    assert [job["name"] for job in jobs_in(tmp_path)] == ["0", "2", "1"]
    assert printed(tmp_path)[0][0] == "3 jobs by val_loss of the last epoch, best first"


def test_jobs_of_another_task_than_most_are_left_out(tmp_path: Path) -> None:
    for name, key, value in (("0", "val_map", 0.9), ("1", "val_accuracy", 0.2), ("2", "val_map", 0.8)):
        row = {"epoch": 1, key: value}
        write_job(tmp_path, name, [f"++data={key}", f"++seed={name}"], best=row, last=row)
    lines, _ = printed(tmp_path)
    assert lines[0] == "3 jobs by val_map of the last epoch, best first"
    assert [line.split(" | ")[2] for line in lines[2:5]] == ["0.9000", "0.8000", "|"]
    assert "Left out: no val_map in the last epoch (1)." in lines


def test_what_a_search_chose_by_is_in_no_mean_and_no_verdict(tmp_path: Path) -> None:
    """The trial is the luckiest of many, and the finalist's seeds made it the winner."""
    jobs = [(0.9, 0, {"trial": 0}), (0.8, 1, {"finalist": True}), (0.5, 1001, {}), (0.6, 1002, {})]
    for order, (accuracy, seed, more) in enumerate(jobs):
        overrides = ["++fit.lr=0.1", f"++seed={seed}"]
        write_job(tmp_path, str(order), overrides, accuracy)
        job = {"id": str(order), "order": order, "overrides": overrides, "varied": overrides}
        (tmp_path / str(order) / "job.json").write_text(json.dumps(job | more))
    lines, _ = printed(tmp_path)
    (mean,) = json.loads((tmp_path / "sweep.json").read_text())["comparison"]["groups"]
    assert mean["scores"] == [0.5, 0.6]
    chose = "fit.lr=0.1 seed=0, fit.lr=0.1 seed=1"
    assert f"Left out: trials and finalists of a search, whose scores are too optimistic ({chose})." in lines
    compared, _ = compare_runs(find_runs([tmp_path]))
    assert compared is not None
    assert compared.baseline.replicates.mean == pytest.approx(0.55)
