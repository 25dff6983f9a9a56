"""When a report is written: by the callback, by the command line."""

import errno
import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

import pytest
import torch
from fakes import lin, make_learner, on, raises
from reports import Page, folder_of_a_run  # noqa: F401  (a fixture)

from augment.support import background
from augment.support.errors import UserError
from augment.support.files import json_line
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.optimizer_steps import Interrupt, ParamScheduler
from trainer.callbacks.plots import Plots
from trainer.callbacks.recorder import Recorder
from trainer.loop.callback import Callback, RunDescription
from trainer.loop.checkpoint import BEST, LAST, BestModel, save
from trainer.report import page
from trainer.report.callback import Report
from trainer.report.command import main
from trainer.report.run_content import MISTAKES_FILE, REPORT_FILE, RunRecord, read_record
from trainer.run.config.schema import CONFIG_FILE, PLAN_FILE

# --- the callback ---


def fit(folder: Path, *callbacks: Callback) -> str:
    learner = make_learner(Recorder(), Checkpoint(), Report(), *callbacks, folder=folder)
    learner.fit()
    return Page((folder / REPORT_FILE).read_text()).text


def test_it_is_the_report_that_the_folder_gives(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (CONFIG_FILE, PLAN_FILE):
        shutil.copy(run / name, tmp_path / name)
    written: list[RunRecord] = []
    monkeypatch.setattr(page, "write_record", written.append)
    learner = make_learner(Recorder(interval=0), Checkpoint(), Report(), folder=tmp_path)
    learner.fit()
    (known,) = written
    assert json.loads((tmp_path / MISTAKES_FILE).read_text()) == json.loads(json_line(asdict(known.best_pass)))
    read = read_record(tmp_path)  # its summary is not there yet, so predictions are those of best.pt
    assert read.best_pass == known.best_pass
    assert (read.best, read.display, read.left) == (known.best, known.display, known.left)
    assert (read.run.rows, read.run.steps) == (known.run.rows, known.run.steps)


def test_a_fit_in_progress_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(background, "_MAX_SHARE", 1e9)
    texts: list[str] = []
    write = page.write_atomically

    def keep(file: Path, text: str) -> None:
        texts.append(text)
        write(file, text)

    monkeypatch.setattr(page, "write_atomically", keep)
    run = RunDescription(name="<b>mine</b>", tags=("</h1>",), began=monotonic() - 7200)
    make_learner(Recorder(interval=0), Checkpoint(), Report(), folder=tmp_path, run=run, epochs=8).fit()
    *progress, final = (Page(text).text for text in texts)
    assert len(progress) >= 1
    assert all("running written 20" in text.replace("</h1>", "").replace("  ", " ") for text in progress)
    assert "finished" in final
    assert "reloads" not in final
    assert all("<b>mine</b>" in text and "</h1>" in text for text in (*progress, final))
    assert all("2 h 0 min" in text for text in (*progress, final))  # since the run began, not its fit
    assert all('http-equiv="refresh"' in text for text in texts[:-1])
    assert 'http-equiv="refresh"' not in texts[-1]


def test_an_interrupted_fit_has_a_report(tmp_path: Path) -> None:
    interrupt = Interrupt()

    def press(learner: object) -> None:
        interrupt.pressed = True

    text = fit(tmp_path, interrupt, on("before_validate", press))
    assert "interrupted after 0 of 2 epochs" in text
    assert f"fit.resume={tmp_path}" in text
    assert (tmp_path / LAST).is_file()


def test_a_failed_fit_has_a_report(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(tmp_path, on("after_epoch", raises(RuntimeError("out of memory"), 1)))
    text = Page((tmp_path / REPORT_FILE).read_text()).text
    assert "The run failed after" in text
    assert "RuntimeError: out of memory" in text


def test_a_report_that_cannot_be_written_costs_no_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left", "report.html")

    monkeypatch.setattr(page, "write_atomically", full)
    make_learner(Recorder(), Report(), ParamScheduler({"lr": lin(1, 0)}), folder=tmp_path).fit()
    assert capsys.readouterr().err == "warning: report.html was not written: no space left.\n"


def test_a_foreign_best_model_gives_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run that finds no better epoch keeps the best.pt of the earlier run, which may be a stranger's."""
    samples = {"index": torch.tensor([-9])}
    best = BestModel(model={}, row={"epoch": math.nan}, samples=samples, classes=("a", "b"), task="classify")
    save(replace(best, samples=None), tmp_path / BEST)
    make_learner(Recorder(), Report(), ParamScheduler({"lr": lin(1, 0)}), folder=tmp_path).fit()
    assert capsys.readouterr().err.startswith("warning: report.html was not written: ValueError: ")
    save(best, tmp_path / BEST)
    with pytest.raises(UserError, match=r"best\.pt is damaged"):
        make_learner(Recorder(), Plots(), ParamScheduler({"lr": lin(1, 0)}), folder=tmp_path).fit()


@pytest.mark.parametrize(("callback", "method"), [(Report(), "section"), (Plots(), "figure")])
def test_own_mistakes_are_not_blamed_on_the_best_model(
    callback: Callback, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(Recorder(), Checkpoint(), ParamScheduler({"lr": lin(1, 0)}), callback, folder=tmp_path)
    monkeypatch.setattr(learner.task, method, lambda *_: {}["no key"])
    with pytest.raises(KeyError, match="no key"):
        learner.fit()


# --- the command line ---


def test_the_command_writes_it_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / REPORT_FILE).write_text("old")
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == f"{run / REPORT_FILE}\n"
    assert "Reproduce this run" in (run / REPORT_FILE).read_text()
