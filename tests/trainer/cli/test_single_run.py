"""The public face: `trainer.train` does what the command line does, and `import trainer` takes no time."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import BARE, rows_of

import trainer
from augment import UserError
from augment.data.sources import load_dataset, parse_data
from trainer import Summary, train
from trainer.cli.main import main

SMALL = [
    "+aug=imagenette",
    "aug.size=16",
    "fit.device=cpu",
    "fit.threads=1",
    "fit.batch_size=32",
    "fit.limit_batches=2",
]


def test_every_name_of_the_face_is_there() -> None:
    assert dir(trainer) == trainer.__all__
    for name in trainer.__all__:
        assert getattr(trainer, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'trainer' has no attribute 'trian'"):
        trainer.trian  # noqa: B018


# What takes tens of milliseconds to seconds to import, and is not needed to say what is wrong with a command.
HEAVY = {
    *("torch", "nvidia", "timm", "torchmetrics", "torchvision", "matplotlib", "scipy", "sympy", "optuna", "pyarrow"),
    *("wandb", "tensorboard", "mlflow"),
}


def test_what_is_wrong_is_said_before_anything_heavy_is_imported() -> None:
    code = f"""
import contextlib, io, sys
import trainer.cli.main, trainer.run.config.schema

def loaded(step):
    found = sorted({{name.split(".")[0] for name in sys.modules}} & {HEAVY})
    assert not found, (step, found)

loaded("import")
assert trainer.run.config.fit.parse_fit({{"epochs": 2}}).epochs == 2
wrong = ("fit.epoch=3", "callbacks.checkpoint.monitor=x", "evalute", "fit.resume=nowhere")
tools = [[name, "--help"] for name in ("bench", "evaluate", "export", "find_lr", "predict", "sweep", "dashboard")]
for given in (["--help"], *([one] for one in wrong), ["-m", "fit.epoch=1,2"], *tools, ["find_lr", "fit.epoch=3"]):
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = trainer.cli.main.main(given)
        except SystemExit as ended:
            code = ended.code
    assert code == (0 if given[-1] == "--help" else 2), given
    loaded(given)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("cores", "given", "expected"), [(1, None, "passive"), (1, "active", "active"), (5, None, None)]
)
def test_on_few_cores_threads_of_pytorch_do_not_spin(cores: int, given: str | None, expected: str | None) -> None:
    code = f"""
import os
os.sched_getaffinity = lambda process: range({cores})
import trainer
assert os.environ.get("OMP_WAIT_POLICY") == {expected!r}
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("sample_drawn")
def test_it_trains_as_the_command_line_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handlers = list(logging.getLogger().handlers)
    summary = train(*SMALL, *BARE, "fit.epochs=1", folder="one")
    assert isinstance(summary, Summary)
    assert (summary.status, summary.epochs, summary.folder) == ("finished", 1, Path("one"))
    assert logging.getLogger().handlers == handlers
    assert main([*SMALL, *BARE, "fit.epochs=1", "hydra.run.dir=two"]) == 0
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two")
    files = [{str(file.relative_to(tmp_path / run)) for file in (tmp_path / run).rglob("*")} for run in ("one", "two")]
    assert files[0] == files[1]
    assert "finished after 1 epoch" in (tmp_path / "one" / "trainer.log").read_text()
    resumed = train("fit.resume=one", "fit.epochs=2")
    assert resumed.epochs == 2
    assert resumed.folder.parts[0] == "outputs"


def test_the_folder_of_a_run_is_not_an_override_in_python() -> None:
    with pytest.raises(UserError, match=r"^hydra\.run\.dir: has no effect in Python\..* pass folder=\.$"):
        train("data=sample", "hydra.run.dir=one")


def test_data_that_have_changed_are_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"train": "x.npy", "val": "x.npy", "train_targets": "y.npy", "val_targets": "y.npy"}
    np.save("x.npy", np.zeros((4, 8, 8, 3), np.uint8))
    np.save("y.npy", np.arange(4) % 2)
    load_dataset(parse_data({"source": "numpy", **given}))
    np.save("x.npy", np.zeros((4, 8, 8), np.uint8))
    overrides = [f"data.{name}={file}" for name, file in given.items()]
    with pytest.raises(UserError, match=r"^data\.train=x\.npy is \(4, 8, 8\) uint8\."):
        train("data.source=numpy", "fit.device=cpu", "fit.epochs=1", *overrides)


@pytest.mark.slow
def test_a_second_run_of_a_notebook_warns_as_the_first_and_its_summary_draws_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, split in enumerate(("train/a", "train/b", "val/a")):
        (tmp_path / "photos" / split).mkdir(parents=True)
        gray = np.full((16, 16, 3), number * 40, dtype=np.uint8)
        Image.fromarray(gray).save(tmp_path / "photos" / split / f"{number}.png")
    warnings = []
    for _ in range(2):
        caplog.clear()
        summary = train(*BARE, "data=folder", f"data.root={tmp_path / 'photos'}", *SMALL, "fit.epochs=1")
        warnings.append([r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING])
    assert any("b" in text and "no image in val" in text for text in warnings[0])
    assert warnings[1] == warnings[0]
    assert repr(summary) == f"Summary({summary})"
    html = summary._repr_html_()
    assert html.count("<tr>") == 4
    assert f"<td style='text-align:left'>{summary.best['val_accuracy']:.4f}</td>" in html
