"""The callbacks of a run: what each one does, and what all of them have in common."""

import importlib
import inspect
import math
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import (
    FakeWandb,
    assert_same,
    make_learner,
    noise_loader,
    on,
    raises,
)
from torch import nn

import trainer
import trainer.config
from augment.errors import UserError
from augment.params import Number, setting, settings
from trainer.callback import EVENTS, Callback, CancelEpoch, CancelFit, check_events
from trainer.callbacks import CALLBACKS, Checkpoint, GradClip, Interrupt, ParamScheduler, configurable, parse_callbacks
from trainer.checkpoint import BEST, LAST, load
from trainer.learner import Learner, Position
from trainer.recorder import Recorder
from trainer.schedule import constant, lin, one_cycle

# --- what all callbacks have in common ---


def public_callbacks() -> list[type[Callback]]:
    """Return every callback that a module of the project defines."""
    names = [f"trainer.{module.name}" for module in pkgutil.iter_modules(trainer.__path__) if module.name != "__main__"]
    found = [
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if inspect.isclass(value) and issubclass(value, Callback) and value.__module__ == name
    ]
    return [cls for cls in found if cls is not Callback and not cls.__name__.startswith("_")]


ALL = public_callbacks()
every_callback = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)


def make(cls: type[Callback]) -> Callback:
    return ParamScheduler({"lr": lin(0.1, 0.0)}) if cls is ParamScheduler else cls()


@pytest.fixture(autouse=True)
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_all_callbacks_are_found() -> None:
    assert {cls.__name__ for cls in ALL} >= {
        *("Recorder", "ParamScheduler", "Interrupt", "GradClip", "Checkpoint", "ProgressBar", "Plots", "Wandb"),
        "Report",
    }
    assert {cls for cls in CALLBACKS.values() if cls.__module__.startswith("trainer.")} <= set(ALL)


@every_callback
def test_every_event_of_a_callback_exists(cls: type[Callback]) -> None:
    check_events(make(cls))
    own = [name for name in dir(cls) if name.startswith(("before_", "after_"))]
    assert set(own) == set(EVENTS)
    for name in own:
        assert list(inspect.signature(getattr(cls, name)).parameters) == ["self", "learner"], name


@every_callback
def test_a_callback_says_what_it_does(cls: type[Callback]) -> None:
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # what dataclasses write where nobody else does


@every_callback
def test_a_callback_takes_a_fit_without_a_folder(cls: type[Callback]) -> None:
    callback = make(cls)
    others = () if cls is Recorder else (Recorder(),)
    learner = make_learner(*others, callback, folder=None)
    learner.fit()
    assert learner.position == (2, 0)


@every_callback
def test_a_callback_takes_a_validation_of_its_own(cls: type[Callback]) -> None:
    """As evaluation does it: without a fit around it."""
    others = () if cls is Recorder else (Recorder(),)
    learner = make_learner(*others, make(cls))
    learner.validate()
    assert learner.find(Recorder).val


@every_callback
def test_a_callback_takes_a_fit_that_ends_before_it_begins(cls: type[Callback], tmp_path: Path) -> None:
    others = () if cls is Recorder else (Recorder(),)
    make_learner(*others, make(cls), on("before_fit", raises(CancelFit), -100), folder=tmp_path).fit()


@every_callback
def test_a_callback_takes_an_epoch_that_is_cut_short(cls: type[Callback], tmp_path: Path) -> None:
    others = () if cls is Recorder else (Recorder(),)
    learner = make_learner(*others, make(cls), on("after_step", raises(CancelEpoch)), folder=tmp_path)
    learner.fit()
    assert learner.position == (2, 0)


@every_callback
@pytest.mark.parametrize("at", [2, 10])
def test_a_state_survives_its_file_and_comes_back_as_it_was(cls: type[Callback], at: int, tmp_path: Path) -> None:
    callback = make(cls)
    others = () if cls is Recorder else (Recorder(),)
    make_learner(*others, callback, on("before_batch", raises(CancelFit, at)), folder=tmp_path).fit()
    state, file = callback.state_dict(), BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert_same(loaded, state)
    fresh = make(cls)
    fresh.load_state_dict(loaded)
    assert_same(fresh.state_dict(), state)


@every_callback
def test_the_state_of_a_callback_that_never_ran_comes_back(cls: type[Callback]) -> None:
    fresh = make(cls)
    fresh.load_state_dict(make(cls).state_dict())
    assert_same(fresh.state_dict(), make(cls).state_dict())


# --- the registry ---


def test_names_are_those_of_the_classes() -> None:
    assert {name: cls.__name__ for name, cls in CALLBACKS.items() if cls in ALL} == {
        "grad_clip": "GradClip",
        "checkpoint": "Checkpoint",
        "early_stopping": "EarlyStopping",
        "ema": "EMA",
        "freeze": "Freeze",
        "plots": "Plots",
        "progress_bar": "ProgressBar",
        "report": "Report",
        "wandb": "Wandb",
    }


def test_a_callback_is_made_with_its_settings() -> None:
    makers = parse_callbacks({"grad_clip": {"max_norm": 0.25}, "checkpoint": {"monitor": "val_loss"}, "plots": None})
    clip, checkpoint = (maker() for maker in makers)
    assert isinstance(clip, GradClip)
    assert clip.max_norm == 0.25
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.monitor == "val_loss"
    assert makers[0]() is not clip


@pytest.mark.parametrize("given", [{}, {"plots": None}, {"plots": None, "checkpoint": None}])
def test_no_callbacks(given: dict[str, object]) -> None:
    assert parse_callbacks(given) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("plots", "callbacks: 'plots' is not allowed. Allowed: a mapping of callbacks, as grad_clip: {}."),
        (["plots"], "callbacks: ['plots'] is not allowed."),
        ({"plotz": {}}, "callbacks.plotz: unknown callback. Did you mean 'plots'? Allowed: checkpoint, early_stop"),
        ({"gradclip": None}, "callbacks.gradclip: unknown callback. Did you mean 'grad_clip'?"),
        ({"plots": True}, "callbacks.plots: True is not allowed. Allowed: a mapping of pictures."),
        ({"plots": {"picturs": 3}}, "callbacks.plots.picturs: unknown key. Did you mean 'pictures'?"),
        (
            {"plots": {"pictures": 0}},
            "callbacks.plots.pictures: 0 is not allowed. Allowed: a whole number from 1 to",
        ),
        ({"grad_clip": {"max_norm": 0}}, "callbacks.grad_clip.max_norm: 0 is not allowed."),
        ({"grad_clip": {"max_norm": "1"}}, "callbacks.grad_clip.max_norm: '1' is not allowed."),
        ({"checkpoint": {"monitor": "val_acc"}}, "callbacks.checkpoint.monitor: unknown name 'val_acc'. Did you mean"),
        ({"checkpoint": {"best": 1}}, "callbacks.checkpoint.best: unknown key."),
        ({"checkpoint": {"order": 1}}, "callbacks.checkpoint.order: unknown key."),
    ],
)
def test_mistakes_are_named(given: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        parse_callbacks(given)


def test_a_callback_of_ones_own_is_registered_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.callbacks._CALLBACKS", {})

    @configurable
    @dataclass(eq=False)
    class ModelEma(Callback):
        decay: float = setting(Number(default=0.99, within=(0, 1), doc="share of the old average"))

    (maker,) = parse_callbacks({"model_ema": {"decay": 0.5}})
    assert maker() is not maker()
    assert isinstance(callback := maker(), ModelEma)
    assert callback.decay == 0.5


@pytest.mark.parametrize("name", CALLBACKS)
def test_every_callback_can_be_made_from_its_defaults(name: str) -> None:
    (maker,) = parse_callbacks({name: {}})
    callback = maker()
    assert type(callback) is CALLBACKS[name]
    for key, param in settings(CALLBACKS[name]).items():
        assert getattr(callback, key) == param.default


# --- ParamScheduler ---


def golden_one_cycle(step: int, total: int) -> float:
    """From 0.2 to 1 over three tenths of the steps, then to 0, by cosines; written for whole steps."""
    warm = 0.3 * total
    if step < warm:
        return 0.2 + 0.8 * (1 - math.cos(math.pi * step / warm)) / 2
    return (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2


def rates(learner: Learner, start: Position | None = None, key: str = "lr") -> list[float]:
    """Fit and return the values that the optimizer's steps were made with, each twice if there are two groups."""
    seen: list[float] = []
    learner.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.extend(group[key] for group in optimizer.param_groups)
    )
    learner.fit(start or Position())
    return seen


def scheduled(*callbacks: Callback, **options: Any) -> Learner:
    return make_learner(ParamScheduler({"lr": one_cycle(1.0, start=0.2, end=0.0)}), *callbacks, **options)


def test_ten_steps_of_one_cycle_by_hand() -> None:
    found = rates(scheduled(train=noise_loader(10), epochs=2))
    assert len(found) == 10
    assert found[:4] == pytest.approx([0.2, 0.4, 0.8, 1.0])
    assert found[3] == 1.0
    assert found[4:] == pytest.approx([(1 + math.cos(math.pi * k / 7)) / 2 for k in range(1, 7)])


@pytest.mark.parametrize("limit", [None, 1, 2, 4])
@pytest.mark.parametrize("samples", [1, 5, 7, 8])
def test_the_schedule_runs_over_exact_steps(samples: int, limit: int | None) -> None:
    """Whatever the batch size leaves over and whatever limit there is, it begins and ends with the fit."""
    epochs = 3
    total = epochs * min(limit or 99, math.ceil(samples / 2))
    found = rates(scheduled(train=noise_loader(samples), epochs=epochs, limit_batches=limit))
    assert found == pytest.approx([golden_one_cycle(step, total) for step in range(total)], abs=1e-12)


@pytest.mark.parametrize("limit", [None, 2])
def test_a_resumed_schedule_goes_on_where_it_was(limit: int | None) -> None:
    total = 3 * (limit or 3)
    golden = [golden_one_cycle(step, total) for step in range(total)]
    for done in range(1, total):
        stop = on("after_step", raises(CancelFit, done - 1))
        first = scheduled(stop, epochs=3, limit_batches=limit)
        second = scheduled(epochs=3, limit_batches=limit)
        found = rates(first) + rates(second, second.load_state_dict(first.state_dict()))
        assert found == pytest.approx(golden, abs=1e-12)


def test_a_step_that_is_left_out_still_counts() -> None:
    learner = scheduled(on("before_batch", lambda learner: seen.append(learner.optimizer.param_groups[0]["lr"])))
    seen: list[float] = []
    learner.fit()
    in_training = [seen[i] for i in (0, 1, 2, 5, 6, 7)]
    assert in_training == pytest.approx([golden_one_cycle(step, 6) for step in range(6)])
    assert seen[3:5] == [seen[2]] * 2  # validation changes nothing


def test_any_parameter_and_every_group() -> None:
    def two_groups(model: nn.Module) -> torch.optim.Optimizer:
        first, *others = model.parameters()
        groups: list[dict[str, Any]] = [{"params": [first]}, {"params": others, "momentum": 0.5}]
        return torch.optim.SGD(groups, 0.1, momentum=0.9)

    def learner() -> Learner:
        schedules = {"momentum": lin(0.9, 0.3), "weight_decay": constant(0.01)}
        return make_learner(ParamScheduler(schedules), optimizer=two_groups)

    momenta = [0.9 - 0.6 * step / 6 for step in range(6)]
    assert rates(learner(), key="momentum") == pytest.approx([value for value in momenta for _ in range(2)])
    assert rates(learner(), key="weight_decay") == [0.01] * 12
    assert rates(learner(), key="lr") == [0.1] * 12


def test_each_group_has_its_share_of_the_learning_rate_and_adam_its_momentum_in_betas() -> None:
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        first, *others = model.parameters()
        groups: list[dict[str, Any]] = [{"params": [first], "lr_scale": 0.25}, {"params": others}]
        return torch.optim.Adam(groups, 0.1, betas=(0.9, 0.99))

    def learner() -> Learner:
        return make_learner(ParamScheduler({"lr": lin(0.6, 0.0), "momentum": lin(0.9, 0.3)}), optimizer=adam)

    expected = [0.6 - 0.1 * step for step in range(6)]
    assert rates(learner()) == pytest.approx([value * share for value in expected for share in (0.25, 1.0)])
    assert list(rates(learner(), key="betas")) == [  # type: ignore[comparison-overlap]
        (pytest.approx(0.9 - 0.1 * step), 0.99) for step in range(6) for _ in range(2)
    ]


# --- GradClip ---


def clipped_norms(max_norm: float) -> tuple[list[float], list[float]]:
    """Return the norms of all gradients before and after clipping, a step each."""
    before: list[float] = []
    after: list[float] = []

    def norm(learner: Learner) -> float:
        return math.sqrt(sum(float(p.grad.square().sum()) for p in learner.model.parameters() if p.grad is not None))

    make_learner(
        on("before_step", lambda learner: before.append(norm(learner)), -1),
        GradClip(max_norm=max_norm),
        on("before_step", lambda learner: after.append(norm(learner)), 1),
    ).fit()
    return before, after


def test_gradients_are_scaled_down_to_the_limit_and_never_up() -> None:
    free, _ = clipped_norms(1e9)
    limit = sorted(free)[1]
    before, after = clipped_norms(limit)
    assert any(norm > limit for norm in before)
    assert any(norm < limit for norm in before)
    assert after == pytest.approx([min(norm, limit) for norm in before], rel=1e-4)


# --- Checkpoint ---


def scores(values: list[float], key: str = "val_accuracy") -> Callback:
    """Make a callback that replaces what the recorder measured, before the checkpoint sees it."""
    given = iter(values)

    def replace(learner: Learner) -> None:
        learner.find(Recorder).rows[-1][key] = next(given)

    return on("after_epoch", replace)


NAN = math.nan


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_accuracy", [0.1, 0.3, 0.2], 1),
        ("val_accuracy", [0.3, 0.2, 0.1], 0),
        ("val_accuracy", [0.1, 0.2, 0.3], 2),
        ("val_accuracy", [0.2, 0.3, 0.3], 1),
        ("val_accuracy", [0.0, 0.0, 0.0], 0),
        ("train_accuracy", [0.1, 0.3, 0.2], 1),
        ("val_loss", [0.3, 0.1, 0.2], 1),
        ("val_loss", [0.2, 0.1, 0.1], 1),
        ("val_loss", [0.1, 0.2, 0.3], 0),
        ("train_loss", [0.3, 0.1, 0.2], 1),
        ("val_loss", [NAN, 0.2, 0.3], 1),
        ("val_loss", [0.3, NAN, 0.4], 0),
        ("val_loss", [0.3, NAN, 0.2], 2),
        ("val_accuracy", [NAN, 0.1, NAN], 1),
        ("val_accuracy", [NAN, NAN, NAN], 0),
    ],
)
def test_best_is_the_first_of_the_best(monitor: str, values: list[float], best: int, tmp_path: Path) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    copy = on("after_epoch", lambda learner: weights.append(deepcopy(learner.model.state_dict())))
    checkpoint = Checkpoint(monitor=monitor)
    learner = make_learner(Recorder(), scores(values, monitor), checkpoint, copy, folder=tmp_path, epochs=3)
    learner.fit()
    assert checkpoint.best_epoch == best
    assert_same(checkpoint.best, values[best])
    saved = load(tmp_path / BEST)
    assert_same(saved["model"], weights[best])
    assert_same(saved["row"], learner.find(Recorder).rows[best])


def test_best_has_what_evaluation_needs(tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), folder=tmp_path, epochs=1)
    learner.fit()
    saved = load(tmp_path / BEST)
    assert saved.keys() == {"model", "row", "confusion", "samples", "classes", "task"}
    assert saved["classes"] == ["ant", "bee", "cat"]
    assert saved["row"] == learner.find(Recorder).rows[0]
    assert_same(saved["confusion"], learner.find(Recorder).confusion)
    samples = learner.find(Recorder).samples
    assert samples is not None
    assert samples.index.tolist() == [0, 1, 2]
    assert_same(saved["samples"], vars(samples))


def test_last_is_saved_after_every_epoch(tmp_path: Path) -> None:
    positions: list[tuple[int, int]] = []
    look = on("after_epoch", lambda learner: positions.append(load(tmp_path / LAST)["position"]), 100)
    make_learner(Recorder(), scores([0.3, 0.2, 0.1]), Checkpoint(), look, folder=tmp_path, epochs=3).fit()
    assert positions == [(1, 0), (2, 0), (3, 0)]
    assert load(tmp_path / LAST)["position"] == (3, 0)


def test_last_is_saved_once_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    monkeypatch.setattr("trainer.callbacks.save", lambda state, path: saved.append(path.name))
    make_learner(Recorder(), scores([0.3, 0.2]), Checkpoint(), folder=tmp_path).fit()
    assert saved == [BEST, LAST, LAST]


def test_an_interrupted_epoch_is_saved(tmp_path: Path) -> None:
    stop = on("after_batch", raises(CancelFit, at=6))  # three batches and two, then the second of the second epoch
    learner = make_learner(Recorder(), Checkpoint(), stop, folder=tmp_path)
    learner.fit()
    saved = load(tmp_path / LAST)
    assert saved["position"] == (1, 2)
    assert_same(saved["model"], learner.model.state_dict())
    assert saved["callbacks"]["Recorder"]["meter"]["samples"] == 4


def test_an_interrupted_first_epoch_is_saved_too(tmp_path: Path) -> None:
    make_learner(Recorder(), Checkpoint(), on("after_batch", raises(CancelFit)), folder=tmp_path).fit()
    assert load(tmp_path / LAST)["position"] == (0, 1)
    assert not (tmp_path / BEST).exists()


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_failed_is_not_saved(error: BaseException, tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), on("after_step", raises(error, at=4)), folder=tmp_path)
    with pytest.raises(type(error)):
        learner.fit()
    assert load(tmp_path / LAST)["position"] == (1, 0)


def test_a_failed_first_epoch_leaves_nothing(tmp_path: Path) -> None:
    learner = make_learner(Recorder(), Checkpoint(), on("after_step", raises(RuntimeError("boom"))), folder=tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        learner.fit()
    assert not list(tmp_path.glob("*.pt"))


def test_the_last_state_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    saved: list[int] = []

    class Watching(Checkpoint):
        def _save_last(self, learner: Learner) -> None:
            saved.append(learner.epoch)
            super()._save_last(learner)

    make_learner(Recorder(), Watching(every=2), folder=tmp_path, epochs=5).fit()
    assert saved == [1, 3, 4]
    assert load(tmp_path / LAST)["position"] == (5, 0)


def test_the_best_value_is_remembered_by_a_resumed_run(tmp_path: Path) -> None:
    first = make_learner(Recorder(), scores([0.9]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    checkpoint = Checkpoint()
    second = make_learner(Recorder(), scores([0.8, 0.9]), checkpoint, folder=tmp_path, epochs=3)
    second.fit(second.load_state_dict(load(tmp_path / LAST)))
    assert (checkpoint.best, checkpoint.best_epoch) == (0.9, 0)
    assert load(tmp_path / BEST)["row"]["epoch"] == 0


def test_a_resumed_run_that_goes_by_another_value_seeks_the_best_anew(tmp_path: Path) -> None:
    """A loss that is compared with an accuracy would be the best in no epoch."""
    first = make_learner(Recorder(), scores([0.1]), Checkpoint(), folder=tmp_path, epochs=1)
    first.fit()
    checkpoint = Checkpoint(monitor="val_loss")
    second = make_learner(Recorder(), scores([0.8, 0.7], "val_loss"), checkpoint, folder=tmp_path, epochs=3)
    second.fit(second.load_state_dict(load(tmp_path / LAST)))
    assert (checkpoint.best, checkpoint.best_epoch) == (0.7, 2)
    assert load(tmp_path / BEST)["row"]["epoch"] == 2


# --- Interrupt ---


@pytest.fixture
def sigint() -> Iterator[Any]:
    """Python's own handler, which a process started in the background lacks; what was there comes back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press(learner: Learner) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def once(event: str, action: Callable[[Learner], object]) -> Callback:
    left = [action]
    return on(event, lambda learner: left.pop()(learner) if left else None)


def test_ctrl_c_ends_the_fit_after_the_batch(sigint: Any, tmp_path: Path) -> None:
    events: list[str] = []
    notes = [
        on(event, lambda learner, event=event: events.append(event))  # type: ignore[misc]
        for event in ("before_batch", "after_step", "after_batch", "after_train", "after_epoch", "after_fit")
    ]
    interrupt = Interrupt()
    callbacks = [Recorder(), Checkpoint(), interrupt, once("before_step", press), *notes]
    learner = make_learner(*callbacks, folder=tmp_path)
    learner.fit()
    assert events == ["before_batch", "after_step", "after_batch", "after_fit"]
    assert interrupt.pressed
    assert learner.error is None
    assert signal.getsignal(signal.SIGINT) is sigint
    assert load(tmp_path / LAST)["position"] == (0, 1)


def test_ctrl_c_in_validation(sigint: Any) -> None:
    interrupt = Interrupt()
    learner = make_learner(interrupt, once("before_validate", press))
    learner.fit()
    assert interrupt.pressed
    assert learner.position == (0, 3)
    assert learner.val_loader.fetched == [(0, 0)]  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGINT) is sigint


def test_a_second_ctrl_c_stops_at_once(sigint: Any) -> None:
    events: list[str] = []
    interrupt = Interrupt()

    def press_twice(learner: Learner) -> None:
        press(learner)
        events.append("once")
        press(learner)

    twice = on("before_step", press_twice)
    after = [on(event, lambda learner: events.append("batch ended")) for event in ("after_step", "after_batch")]
    learner = make_learner(interrupt, twice, *after)
    with pytest.raises(KeyboardInterrupt):
        learner.fit()
    assert events == ["once"]
    assert interrupt.pressed
    assert isinstance(learner.error, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is sigint


@pytest.mark.parametrize("fails", [False, True])
def test_without_ctrl_c_the_handler_is_given_back(fails: bool, sigint: Any) -> None:
    interrupt, during = Interrupt(), []
    callbacks = [interrupt, on("before_batch", lambda learner: during.append(signal.getsignal(signal.SIGINT)))]
    learner = make_learner(*callbacks, on("after_epoch", raises(RuntimeError("boom") if fails else CancelFit)))
    if fails:
        with pytest.raises(RuntimeError, match="boom"):
            learner.fit()
    else:
        learner.fit()
    assert not interrupt.pressed
    assert during[0] not in (sigint, None)
    assert signal.getsignal(signal.SIGINT) is sigint


def test_a_handler_of_somebody_else_is_given_back(sigint: Any) -> None:
    pressed: list[int] = []

    def own(number: int, frame: object) -> None:
        pressed.append(number)

    signal.signal(signal.SIGINT, own)
    interrupt = Interrupt()
    make_learner(interrupt, once("before_step", press)).fit()
    assert interrupt.pressed
    assert pressed == []
    assert signal.getsignal(signal.SIGINT) is own


def test_a_fit_after_an_interrupted_one_is_a_new_one(sigint: Any) -> None:
    interrupt = Interrupt()
    learner = make_learner(interrupt, once("before_step", press))
    learner.fit()
    learner.fit(learner.position)
    assert learner.position == (2, 0)
    assert not interrupt.pressed


def test_interrupt_in_a_thread_does_nothing(sigint: Any) -> None:
    learner = make_learner(Interrupt())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(learner.fit).result()
    assert learner.position == (2, 0)
    assert signal.getsignal(signal.SIGINT) is sigint
