"""Weights & Biases, with a stand-in for its package: how a dashboard run starts and ends, and what decides it."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeWandb, make_learner, on, raises
from torch import nn

from augment.support.errors import UserError
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.wandb import Wandb
from trainer.loop.callback import RunDescription
from trainer.loop.learner import Learner


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWandb:
    """The stand-in, and a machine on which nobody has an account."""
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    return module


def options(wandb: FakeWandb) -> dict[str, Any]:
    """Return what the only dashboard run was started with."""
    (given,) = [value for name, value in wandb.calls if name == "init"]
    assert isinstance(given, dict)
    return given


def epochs(wandb: FakeWandb) -> list[int]:
    """Return the epochs whose rows were logged."""
    return [value[1]["epoch"] for name, value in wandb.calls if name == "log" and "epoch" in value[1]]


def fit(callback: Wandb, folder: Path | None = None, *others: Any, run: RunDescription | None = None) -> Learner:
    learner = make_learner(Recorder(), callback, *others, folder=folder, run=run)
    learner.fit()
    return learner


def test_a_run_has_its_name_folder_configuration_and_group(wandb: FakeWandb, tmp_path: Path) -> None:
    callback = Wandb(project="birds", entity="us")
    folder = tmp_path / "12-00-00-abc"
    folder.mkdir()
    fit(callback, folder, run=RunDescription({"fit": {"lr": 0.1}}, "sweep-1", name="seed=1", tags=("a" * 99, "b", "b")))
    given = options(wandb)
    assert {key: given[key] for key in ("project", "entity", "config", "group", "name", "tags", "dir")} == {
        "project": "birds",
        "entity": "us",
        "config": {"fit": {"lr": 0.1}},
        "group": "sweep-1",
        "name": "seed=1",
        "tags": ["a" * 64, "b"],
        "dir": folder,
    }
    assert (given["id"], given["resume"]) == (callback.state_dict()["id"], None)


ENVIRONMENT = {
    "WANDB_PROJECT": "theirs",
    "WANDB_NAME": "theirs",
    "WANDB_RUN_GROUP": "theirs",
    "WANDB_DIR": "theirs",
    "WANDB_RUN_ID": "theirs",
    "WANDB_MODE": "offline",
}


def test_the_environment_counts_where_nothing_is_set(
    wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    fit(Wandb(), tmp_path, run=RunDescription({"run": {"name": None}}, name="derived"))
    given = options(wandb)
    # What is None is read from the environment.
    assert {given[key] for key in ("project", "name", "group", "dir", "id", "resume", "mode", "tags")} == {None}


def test_settings_win_over_the_environment(wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    labels = RunDescription({"run": {"name": "mine"}}, "sweep", name="mine", tags=("mine",))
    fit(Wandb(project="mine", mode="online", entity="us"), tmp_path, run=labels)
    given = options(wandb)
    assert (given["project"], given["mode"], given["name"], given["tags"]) == ("mine", "online", "mine", ["mine"])
    assert given["id"] is not None  # jobs of a sweep do not share the one of the environment


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_a_failed_fit_ends_its_dashboard_run_as_failed(error: BaseException, wandb: FakeWandb) -> None:
    with pytest.raises(type(error)):
        fit(Wandb(), None, on("after_batch", raises(error, at=3)))
    assert wandb.calls[-1] == ("finish", 1)
    assert [name for name, _ in wandb.calls].count("finish") == 1


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
        ("machine wandb.example.org login user password 0123abc\n", "online"),
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


@pytest.mark.parametrize("given", ["callbacks.wandb.mode", "WANDB_MODE"])
def test_without_an_account_nothing_is_sent_online(
    given: str, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = Wandb(mode="online" if given == "callbacks.wandb.mode" else "auto")
    if given == "WANDB_MODE":
        monkeypatch.setenv("WANDB_MODE", "online")
    expected = rf"^{given}=online: there is no account .* Allowed: `wandb login`, .*; or {given}=offline, "
    with pytest.raises(UserError, match=expected):
        callback.check(nn.Identity())
    Wandb(mode="offline").check(nn.Identity())
    monkeypatch.setenv("WANDB_API_KEY", "0123abc")
    callback.check(nn.Identity())


# --- resumed ---
