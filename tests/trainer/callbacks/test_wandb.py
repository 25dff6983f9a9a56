"""Weights & Biases, with a stand-in for its package: when it is imported, what it is told, how it ends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeWandb, make_learner, on, raises

from trainer.callbacks.recorder import Recorder
from trainer.callbacks.wandb import Wandb
from trainer.loop.callback import CancelFit, RunDescription
from trainer.loop.learner import Learner


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWandb:
    """The stand-in, and a machine on which nobody has an account."""
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    return module


def options(wandb: FakeWandb) -> dict[str, Any]:
    """Return what the only dashboard run was started with."""
    (given,) = [value for name, value in wandb.calls if name == "init"]
    assert isinstance(given, dict)
    return given


def fit(callback: Wandb, folder: Path | None = None, *others: Any, run: RunDescription | None = None) -> Learner:
    learner = make_learner(Recorder(), callback, *others, folder=folder, run=run)
    learner.fit()
    return learner


def test_importing_the_trainer_does_not_import_wandb() -> None:
    code = "import sys, trainer.run.config, trainer.cli.main; print('wandb' in sys.modules)"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_making_the_callback_does_not_import_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # whoever imports it now fails
    callback = Wandb()
    learner = make_learner(Recorder(), callback)
    callback.state_dict()
    callback.load_state_dict({"id": None})
    with pytest.raises(ImportError):
        learner.fit()
    assert isinstance(learner.error, ImportError)


def test_a_run_has_its_name_folder_configuration_and_group(wandb: FakeWandb, tmp_path: Path) -> None:
    callback = Wandb(project="birds", entity="us")
    folder = tmp_path / "12-00-00-abc"
    folder.mkdir()
    fit(callback, folder, run=RunDescription({"fit": {"lr": 0.1}}, "sweep-1"))
    given = options(wandb)
    assert {key: given[key] for key in ("project", "entity", "config", "group", "name", "dir")} == {
        "project": "birds",
        "entity": "us",
        "config": {"fit": {"lr": 0.1}},
        "group": "sweep-1",
        "name": "12-00-00-abc",
        "dir": folder,
    }
    assert (given["id"], given["resume"]) == (None, None)


def test_a_run_without_a_folder_has_no_name(wandb: FakeWandb) -> None:
    fit(Wandb())
    given = options(wandb)
    assert (given["name"], given["dir"], given["group"], given["entity"]) == (None, None, None, None)
    assert given["project"] == "dali-trainer"


def test_each_epoch_is_logged_once_as_it_ends(wandb: FakeWandb) -> None:
    seen: list[int] = []
    logged = on("after_epoch", lambda learner: seen.append(len(logs(wandb))), 100)
    learner = fit(Wandb(), None, logged)
    assert seen == [1, 2]
    assert logs(wandb) == list(enumerate(learner.find(Recorder).rows))


def logs(wandb: FakeWandb) -> list[tuple[int, dict[str, float]]]:
    """Return what was logged for epochs: (step, row)."""
    return [value for name, value in wandb.calls if name == "log" and value[0] is not None]


def test_images_are_logged_at_the_end(wandb: FakeWandb, tmp_path: Path) -> None:
    for name in ("batch.png", "history.png"):
        (tmp_path / name).touch()
    fit(Wandb(), tmp_path)
    assert wandb.calls[-2] == (
        "log",
        (None, {name: f"image {tmp_path / name}.png" for name in ("batch", "history")}),
    )
    assert wandb.calls[-1] == ("finish", 0)


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_a_failed_fit_ends_its_dashboard_run_as_failed(error: BaseException, wandb: FakeWandb) -> None:
    with pytest.raises(type(error)):
        fit(Wandb(), None, on("after_batch", raises(error, at=3)))
    assert wandb.calls[-1] == ("finish", 1)
    assert [name for name, _ in wandb.calls].count("finish") == 1


@pytest.mark.parametrize("at", [3, 999], ids=["interrupted", "finished"])
def test_a_fit_that_did_not_fail_ends_its_dashboard_run_well(at: int, wandb: FakeWandb) -> None:
    fit(Wandb(), None, on("after_batch", raises(CancelFit(), at)))
    assert wandb.calls[-1] == ("finish", 0)
    assert [name for name, _ in wandb.calls].count("finish") == 1


def test_a_fit_that_ends_before_the_dashboard_began_asks_nothing_of_it(wandb: FakeWandb) -> None:
    fit(Wandb(), None, on("before_fit", raises(CancelFit), -100))
    assert wandb.calls == []


# --- with an account and without ---


@pytest.mark.parametrize(
    ("mode", "key", "expected"),
    [
        ("auto", None, "offline"),
        ("auto", "", "offline"),
        ("auto", "0123abc", "online"),
        ("online", None, "online"),
        ("offline", "0123abc", "offline"),
        ("disabled", "0123abc", "disabled"),
    ],
)
def test_mode(mode: str, key: str | None, expected: str, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    fit(Wandb(mode=mode))
    assert options(wandb)["mode"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("machine api.wandb.ai login user password 0123abc\n", "online"),
        ("machine example.com login user password 0123abc\n", "offline"),
        ("this is no netrc\n", "offline"),
        ("", "offline"),
    ],
)
def test_an_account_in_netrc(text: str, expected: str, wandb: FakeWandb, tmp_path: Path) -> None:
    file = tmp_path / "home" / ".netrc"
    file.write_text(text)
    file.chmod(0o600)
    fit(Wandb())
    assert options(wandb)["mode"] == expected


# --- resumed ---


def test_a_resumed_run_continues_on_the_same_dashboard_run(wandb: FakeWandb) -> None:
    first = fit(Wandb())
    wandb.calls.clear()
    second = make_learner(Recorder(), Wandb(), epochs=3)
    second.fit(second.restore(first.state()))
    given = options(wandb)
    assert (given["id"], given["resume"]) == ("abc123", "allow")
    assert [step for step, _ in logs(wandb)] == [2]


def test_two_runs_in_one_process_are_two_dashboard_runs(wandb: FakeWandb) -> None:
    for _ in range(2):
        fit(Wandb())
    assert [name for name, _ in wandb.calls].count("init") == 2
    assert [name for name, _ in wandb.calls].count("finish") == 2
    assert [value["id"] for name, value in wandb.calls if name == "init"] == [None, None]
