"""Trackers that fail, hang or belong to somebody else, and Weights & Biases with a stand-in for its package."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import pytest
from fakes import FakeWandb, make_learner, on, raises
from torch import nn

from augment.params import SENDS, settings
from augment.support.errors import UserError
from trainer.callbacks import tracker as trackers
from trainer.callbacks.mlflow import Mlflow
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.tracker import Tracker
from trainer.callbacks.wandb import Wandb
from trainer.loop.callback import RunDescription, known_callbacks
from trainer.loop.learner import Learner

# --- failures ---


@dataclass(eq=False)
class Broken(Tracker):
    """Fails where it is told to, or waits."""

    at: str = "log"
    patience: ClassVar[float] = 0.05
    calls: ClassVar[list[str]] = []
    waits: ClassVar[Event] = Event()

    def start(self, run: trackers.TrackedRun) -> None:
        self._call("start")

    def log(self, values: Any, step: int, epoch: int | None = None) -> None:
        self._call("log")

    def finish(self, status: str) -> None:
        self._call("finish")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.at == f"hangs in {name}":
            self.waits.wait(60)
        if self.at == name:
            raise OSError("no route <to> host\nat all")


GIVEN_UP = "the run continues without this tracker: OSError: no route <to> host"


@pytest.mark.parametrize(
    ("at", "calls", "said"),
    [
        ("start", ["start"], GIVEN_UP),
        ("log", ["start", "log", "finish"], GIVEN_UP),
        ("finish", ["start", *8 * ["log"], "finish"], GIVEN_UP),
        ("hangs in start", ["start"], "not everything was sent within 0 s after the fit, and the rest may be missing"),
    ],
)
def test_a_tracker_that_fails_or_hangs_does_not_end_the_run(
    at: str, calls: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "calls", [])
    monkeypatch.setattr(Broken, "waits", Event())
    monkeypatch.setattr(Broken, "patience", 0.05 if "hangs" in at else 60)
    learner = make_learner(Recorder(interval=0), Broken(at=at))
    learner.fit()
    assert len(learner.find(Recorder).rows) == 2
    assert capsys.readouterr().err == f"warning: callbacks.broken: {said}.\n"
    assert Broken.calls == calls
    Broken.waits.set()


class Picky(Broken):
    """Rejects some names and all images, and sends names in lower case."""

    def accepted(self, name: str) -> str:
        return name.lower().replace("(", "_")

    def start(self, run: trackers.TrackedRun) -> int:
        self.sent = list[tuple[int | None, str]]()
        return -1

    def log(self, values: Any, step: int, epoch: int | None = None) -> None:
        if {"val_loss", "step/loss"} & values.keys():
            raise ValueError("<bad> name\nat all")
        self.sent += [(epoch, name) for name in values]

    def reached(self, scores: Any, report: Path | None) -> None:
        raise OSError("no page")


def test_what_a_tracker_rejects_is_left_out_alone(capsys: pytest.CaptureFixture[str]) -> None:
    picky = Picky()
    learner = make_learner(Recorder(interval=0), picky)
    learner.fit()
    row = [name for name in learner.find(Recorder).rows[0] if name != "val_loss"]
    assert [name for epoch, name in picky.sent if epoch == 2 and not name.startswith("best/")] == row
    assert {(None, "step/images_per_second"), (2, "best/epoch")} <= set(picky.sent)
    assert "finish" in Picky.calls
    warning = capsys.readouterr().err
    assert warning.startswith("warning: callbacks.picky: ")
    assert "'step/loss'" in warning
    assert len(warning.splitlines()) == 1


def test_different_names_stay_different() -> None:
    picky = Picky()
    assert picky._named({"a(": 1, "A(": 2, "b": 3}) == {"a_": 1, "a__2": 2, "b": 3}
    assert picky._named({"A_": 4, "A(": 5}) == {"a__3": 4, "a__2": 5}


@pytest.mark.parametrize(
    "name", ["val_mae_fat (%)", "a//b", "/a", "a/", "../a", "a/./b", "..a", "", "x" * 999, "a\n", "train_größe=1,5"]
)
def test_mlflow_accepts_every_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "WARNING")  # it reads this when it is imported
    validation = pytest.importorskip("mlflow.utils.validation")
    validation._validate_metric(Mlflow().accepted(name), 1.0, 0, 0)
    validation._validate_param(Mlflow().accepted(name), "1")


def test_a_missing_package_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Mlflow, "package", "mlflow_that_is_nowhere")
    (tmp_path / "mlflow_that_is_nowhere").mkdir()  # as a folder of a tracker's own files might be called
    monkeypatch.syspath_prepend(str(tmp_path))
    message = r"^callbacks\.mlflow needs the package mlflow_\w+\. .*: pip install 'dali-trainer\[mlflow_\w+\]'$"
    with pytest.raises(UserError, match=message):
        Mlflow().check(nn.Identity())
    Wandb().check(nn.Identity())


def test_a_run_folder_does_not_decide_where_trackers_send() -> None:
    ours = {name: cls for name, cls in known_callbacks().items() if cls.__module__.startswith("trainer.callbacks")}
    params = {f"{name}.{key}": p for name, cls in ours.items() for key, p in settings(cls).items()}
    reaching = {key for key, param in params.items() if param.reach == SENDS}
    assert reaching == {"wandb.project", "wandb.entity", "mlflow.experiment", "mlflow.tracking_uri"}


@pytest.mark.parametrize(
    ("known", "replays", "missing"), [(-1, False, [1, 2]), (1, False, [2]), (None, False, []), (None, True, [1, 2])]
)
def test_a_resumed_run_sends_the_epochs_that_its_record_lacks(
    known: int | None, replays: bool, missing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have been killed before they were sent."""
    first = make_learner(Recorder(), Broken(at=""))
    first.fit()
    broken, sent = Broken(at=""), list[tuple[int | None, int]]()
    monkeypatch.setattr(Broken, "replays", replays)
    monkeypatch.setattr(broken, "start", lambda run: known)
    monkeypatch.setattr(broken, "log", lambda values, step, epoch=None: sent.append((epoch, step)))
    second = make_learner(Recorder(), broken, epochs=3)
    second.fit(second.restore(first.state()))
    assert [one for one in sent if one[0] is not None] == [(epoch, 3 * epoch) for epoch in (*missing, 3)]


def test_ids_of_a_stranger_are_not_used() -> None:
    broken = Broken(at="")
    broken.load_state_dict({"id": "../../up"})
    make_learner(Recorder(), broken).fit()
    assert broken.state_dict()["id"].isalnum()


# --- Weights & Biases ---


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


def fit(callback: Wandb, folder: Path | None = None, *others: Any, run: RunDescription | None = None) -> Learner:
    learner = make_learner(Recorder(), callback, *others, folder=folder, run=run)
    learner.fit()
    return learner


ENVIRONMENT = {f"WANDB_{name}": "theirs" for name in ("PROJECT", "NAME", "RUN_GROUP", "DIR", "RUN_ID")}


def test_settings_win_over_the_environment_which_counts_where_nothing_is_set(
    wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (ENVIRONMENT | {"WANDB_MODE": "offline"}).items():
        monkeypatch.setenv(name, value)
    fit(Wandb(), tmp_path, run=RunDescription({"run": {"name": None}}, name="derived"))
    given = options(wandb)
    # What is None is read from the environment.
    assert {given[key] for key in ("project", "name", "group", "dir", "id", "resume", "mode", "tags")} == {None}
    wandb.calls.clear()
    labels = RunDescription({"run": {"name": "mine"}}, "sweep", name="mine", tags=("a" * 99, "b", "b"))
    fit(Wandb(project="mine", mode="online", entity="us"), tmp_path, run=labels)
    given = options(wandb)
    assert (given["project"], given["mode"], given["name"]) == ("mine", "online", "mine")
    assert (given["tags"], given["entity"]) == (["a" * 64, "b"], "us")
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
        ("auto", "0123abc", "online"),
        ("online", None, "online"),
        ("offline", "0123abc", "offline"),
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
    expected = rf"^{given}=online: .* `wandb login`.* {given}=offline"
    with pytest.raises(UserError, match=expected):
        callback.check(nn.Identity())
    Wandb(mode="offline").check(nn.Identity())
    monkeypatch.setenv("WANDB_API_KEY", "0123abc")
    callback.check(nn.Identity())
