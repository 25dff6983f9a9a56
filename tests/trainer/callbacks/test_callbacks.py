"""What all callbacks have in common, and the registry by which the configuration names them."""

import importlib
import inspect
import pkgutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import assert_same, lin, make_learner, noise_loader, on, raises

import trainer
import trainer.run.config.schema
from augment.data.dataset import Split
from augment.params import settings
from trainer.callbacks.optimizer_steps import ParamScheduler
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.tracker import Tracker
from trainer.loop.callback import (
    EVENTS,
    Callback,
    CancelEpoch,
    CancelFit,
    known_callbacks,
    parse_callbacks,
    sort_callbacks,
)
from trainer.loop.learner import Learner
from trainer.predictions.activation_maps import MapWriter
from trainer.predictions.masks import MaskWriter
from trainer.run.config.sweep_settings import SearchSettings
from trainer.sweeps.trials import Prune, Search

# --- what all callbacks have in common ---


def public_callbacks() -> list[type[Callback]]:
    """Return every callback that a module of the project defines."""
    names = [module.name for module in pkgutil.walk_packages(trainer.__path__, "trainer.") if "__" not in module.name]
    found = [
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if inspect.isclass(value) and issubclass(value, Callback) and value.__module__ == name
    ]
    others = (Callback, MapWriter, MaskWriter)  # the last two write what predict asks for
    return [cls for cls in found if cls not in others and not cls.__name__.startswith("_")]


ALL = public_callbacks()
every_callback = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)


def make(cls: type[Callback]) -> Callback:
    if cls is Prune:
        return Prune(Search(SearchSettings(), Path("nowhere"), "another"), "job")
    return ParamScheduler({"lr": lin(0.1, 0.0)}) if cls is ParamScheduler else cls()


@pytest.fixture(autouse=True)
def _no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trackers send nothing."""
    for cls in [cls for cls in ALL if issubclass(cls, Tracker)]:
        for name in ("start", "log", "image", "table", "artifact", "finish"):
            monkeypatch.setattr(cls, name, lambda *arguments: None)


@every_callback
def test_every_event_of_a_callback_exists(cls: type[Callback]) -> None:
    sort_callbacks([make(cls)])
    own = [name for name in dir(cls) if name.startswith(("before_", "after_"))]
    assert set(own) == set(EVENTS)
    for name in own:
        assert list(inspect.signature(getattr(cls, name)).parameters) == ["self", "learner"], name


def learner_of(callback: Callback, *more: Callback, folder: Path | None = None) -> Learner:
    recorder = () if isinstance(callback, Recorder) else (Recorder(),)
    train: Any = noise_loader()
    targets = tuple(train.targets.tolist())
    train.split = Split(tuple(Path(f"{number}.png") for number in range(len(targets))), targets)
    return make_learner(*recorder, callback, *more, train=train, folder=folder)


@every_callback
def test_a_callback_takes_fits_cut_short_and_without_a_folder_and_a_validation_of_its_own(
    cls: type[Callback], tmp_path: Path
) -> None:
    short = learner_of(make(cls), on("after_step", raises(CancelEpoch)), folder=tmp_path)
    short.fit()
    learner = learner_of(make(cls))
    learner.fit()
    assert learner.progress.position == short.progress.position == (2, 0)
    evaluated = learner_of(make(cls))
    evaluated.validate()
    assert evaluated.find(Recorder).val


@every_callback
@pytest.mark.parametrize("at", [2, 10])
def test_a_state_survives_its_file_and_comes_back_as_it_was(cls: type[Callback], at: int, tmp_path: Path) -> None:
    callback = make(cls)
    learner_of(callback, on("before_batch", raises(CancelFit, at)), folder=tmp_path).fit()
    state, file = callback.state_dict(), BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert_same(loaded, state)
    fresh = make(cls)
    fresh.load_state_dict(loaded)
    assert_same(fresh.state_dict(), state)


# --- the registry ---


@pytest.mark.parametrize("name", known_callbacks())
def test_every_callback_can_be_made_from_its_defaults(name: str) -> None:
    callback = known_callbacks()[name](**parse_callbacks({name: {}})[name])
    assert type(callback) is known_callbacks()[name]
    for key, param in settings(known_callbacks()[name]).items():
        assert getattr(callback, key) == param.default
