"""A run is made as it is configured: no setting is lost between the configuration and the learner."""

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from fakes import needs_gpu, on, raises
from rich.console import Console
from runs import BARE, QUIET, small_config

from augment.cli.compose import compose
from augment.pipeline.loader import Loader
from augment.support.errors import UserError
from trainer.callbacks.ema import EMA
from trainer.callbacks.optimizer_steps import FreshStatistics, ParamScheduler
from trainer.callbacks.recorder import NonFiniteLossError
from trainer.loop.checkpoint import BEST, LAST, FitState, load, save
from trainer.loop.learner import Learner
from trainer.run import build
from trainer.run import train as run
from trainer.run.build import make_learner, make_loaders
from trainer.run.config.checks import check_config, check_resume
from trainer.run.config.schema import parse_config
from trainer.tasks.loss import ClassLoss
from trainer.tools.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("own_folder")


def prepared(photo_root: Path, folder: Path, *overrides: str) -> Learner:
    """The learner of a run that has not begun."""
    config = small_config(photo_root, *overrides)
    loaders = make_loaders(config)
    callbacks = (*run.loop_callbacks(config.fit.schedules()), *(make() for make in config.callbacks))
    learner = make_learner(config, loaders, folder, callbacks=callbacks)
    run._announce(config, learner, loaders, folder, QUIET)
    loaders.close()
    return learner


def test_top5_cannot_be_monitored_with_few_classes(photo_root: Path) -> None:
    with pytest.raises(UserError, match=r"val_top5 is not measured for the task classify with 2 classes\."):
        check_config(small_config(photo_root, "callbacks.checkpoint.monitor=val_top5"))


def test_what_is_configured_is_what_runs(photo_root: Path, tmp_path: Path) -> None:
    given = ["fit.accumulate=3", "fit.validate_every=2", "fit.tta=flip", "fit.limit_batches=1", "fit.epochs=7"]
    given += ["fit.precision=bf16", "fit.label_smoothing=0.2", "fit={momentum: 0.9, momentum_low: 0.8}"]
    learner = prepared(photo_root, tmp_path, *given, "fit.optimizer=adamw", "callbacks.ema.decay=0.5")
    assert (learner.settings.accumulate, learner.settings.validate_every, learner.settings.tta) == (3, 2, "flip")
    assert (learner.settings.limited(len(learner.val_loader)), learner.progress.epochs) == (1, 7)
    assert (learner.settings.half, learner.runner.scaler) == (True, None)
    assert (learner.loss_function, learner.val_loss_function) == (ClassLoss(0.2), ClassLoss(0.0))
    assert set(learner.find(ParamScheduler).schedules) == {"lr", "momentum"}
    assert type(learner.optimizer) is torch.optim.AdamW
    assert learner.find(EMA).decay == 0.5
    other = prepared(photo_root, tmp_path, "fit.precision=fp16", "fit.schedule=constant", "fit.batch_size=5")
    assert other.runner.scaler is not None
    assert (set(other.find(ParamScheduler).schedules), other.progress.batches_in(0)) == ({"lr"}, 2)


@pytest.mark.parametrize(
    ("overrides", "fresh"),
    [
        ([], [False]),
        (["fit.fresh_statistics=true", "model.weights=some.pth"], [True]),
        (["fit.fresh_statistics=false"], []),
        (["model.weights=some.pth"], []),
        (["model=timm", "model.name=resnet18", "model.pretrained=true"], []),
    ],
)
def test_statistics_begin_anew_unless_the_model_starts_from_weights(
    overrides: list[str], fresh: list[bool], photo_root: Path
) -> None:
    callbacks = run._callbacks(small_config(photo_root, *overrides))
    assert [one._always for one in callbacks if isinstance(one, FreshStatistics)] == fresh


def test_a_setting_without_effect_is_told_in_the_log(
    photo_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(photo_root, tmp_path, "fit.standardize=false")
    assert "fit.standardize=false has no effect, because the model predicts classes" in caplog.messages


def test_a_training_set_smaller_than_a_batch_gets_a_note(
    photo_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(photo_root, tmp_path, "fit.batch_size=6")
    assert "single batch" not in caplog.text
    prepared(photo_root, tmp_path, "fit.batch_size=7")
    note = (
        "fit.batch_size=7: the training set has 6 images, so each epoch is a single batch. Set a smaller fit.batch_size"
    )
    assert note in caplog.messages


def weights(learner: Learner) -> list[float]:
    loss = learner.loss_function
    assert isinstance(loss, ClassLoss)
    assert loss.weights is not None
    assert learner.val_loss_function == ClassLoss()
    assert learner.val_loss_function.weights is None  # type: ignore[attr-defined]
    return loss.weights.tolist()


def test_limited_batches_validate_on_a_random_sample(photo_root: Path) -> None:
    """Sources list images class by class: the first batches would all be of one class."""
    root = f"data.root={photo_root}/train"
    given = ["data=folder", root, "data.val_fraction=0.7", "fit.batch_size=2", "fit.device=cpu"]
    whole, *some = (
        parse_config(compose([*given, f"data.split_seed={seed}", f"fit.limit_batches={limit}"])).dataset.val
        for seed, limit in ((0, "null"), *((seed, 1) for seed in range(5)))
    )
    assert whole.targets == (0, 0, 1, 1)
    assert {split.targets for split in some} >= {(0, 0), (0, 1)}
    assert {len(split) for split in some} == {2}


def test_balance_reaches_the_loss_or_the_loader(photo_root: Path, tmp_path: Path) -> None:
    """Of the three images of each class, one ant is learned, and two bees."""
    lists = {"train": ["ant/0.png 0", "bee/0.png 1", "bee/1.png 1"], "val": ["ant/1.png 0", "bee/2.png 1"]}
    for name, lines in lists.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    given = ["data=filelist", "data.train=train.txt", "data.val=val.txt", f"data.root={photo_root / 'train'}"]
    small = ["aug.size=16", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1", *given]

    def prepare(how: str) -> tuple[Learner, str]:
        console = Console(file=StringIO(), width=200)
        config = parse_config(compose([*small, f"data.balance={how}"]))
        loaders = make_loaders(config)
        learner = make_learner(config, loaders, tmp_path, callbacks=())
        run._announce(config, learner, loaders, tmp_path, console)
        loaders.close()
        assert isinstance(console.file, StringIO)
        return learner, console.file.getvalue()

    learner, said = prepare("weights")
    assert weights(learner) == [1.5, 0.75]
    assert learner.progress.batches_in(0) == 2
    assert "balance: weights in the training loss are from 0.75 (class 1) to 1.5 (class 0)" in said
    learner, said = prepare("oversample")
    assert learner.loss_function == ClassLoss()
    assert sorted(i for batch in learner.train_loader for i in batch.indices.tolist()) == [0, 1, 2, 3]
    assert "balance: 3 training images, 4 samples per epoch" in said
    assert "filelist: 3 + 2 images, 2 classes" in said


@pytest.mark.slow
def test_a_fold_is_what_a_run_is_scored_on(photo_root: Path, tmp_path: Path) -> None:
    given = ["data=folder", f"data.root={photo_root}", "data.folds=3", "data.fold=2", "data.fraction=0.5"]
    small = ["aug.size=16", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1", "fit.epochs=1"]
    console = Console(file=StringIO(), width=200)
    summary = run.train(parse_config(compose([*given, *small])), tmp_path / "run", console=console)
    assert isinstance(console.file, StringIO)
    assert "folder, fold 2 of 3, fraction 0.5: 2 + 2 images, 2 classes" in console.file.getvalue()
    assert "folder, fold 2 of 3, fraction 0.5" in (tmp_path / "run" / "report.html").read_text()
    scores = evaluate(tmp_path / "run")
    assert (scores.images, scores.values["val_accuracy"]) == (2, summary.best["val_accuracy"])
    assert scores.values["val_loss"] == pytest.approx(summary.best["val_loss"], rel=1e-5)
    # What was left aside is the test set.
    assert evaluate(tmp_path / "run", None, ["data.folds=null", "data.fold=null"]).images == 6


def test_only_training_leaves_out_a_smaller_last_batch(photo_root: Path, tmp_path: Path) -> None:
    learner = prepared(photo_root, tmp_path, "fit.batch_size=4", "fit.drop_last=true")
    assert (learner.progress.batches_in(0), learner.settings.limited(len(learner.val_loader))) == (1, 2)


def test_states_of_other_ranks_are_checked(photo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "first"
    run.train(small_config(photo_root, *BARE, "fit.epochs=1"), first, console=QUIET)
    save(replace(load(first / LAST, FitState), others=[{"evil": 1}]), first / LAST)
    monkeypatch.setattr("trainer.run.config.checks.current", lambda: SimpleNamespace(rank=1, size=2))
    with pytest.raises(UserError, match=r"last\.pt is damaged"):
        check_resume(small_config(photo_root, *BARE, "fit.epochs=2", f"fit.resume={first}"))


def test_a_resumed_run_must_have_the_same_size(photo_root: Path, tmp_path: Path) -> None:
    given = [*BARE, "aug.mean=auto", "aug.std=auto"]
    run.train(small_config(photo_root, *given, "fit.epochs=1"), tmp_path / "run", console=QUIET)
    given += ["fit.epochs=2", f"fit.resume={tmp_path / 'run'}"]
    check_resume(small_config(photo_root, *given))
    with pytest.raises(UserError, match=r"^aug\.size: 24 px, but the resumed run had \d+ px\. Use the same value\."):
        check_resume(small_config(photo_root, *given, "aug.size=24"))
    with pytest.raises(UserError, match=r"^aug\.train differs from the saved run"):
        check_resume(small_config(photo_root, *given, "aug.train.invert.p=0.5"))


def test_a_damaged_state_is_blamed_for_an_error_in_the_first_step(photo_root: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    given = [*BARE, "fit.accumulate=2", "fit.optimizer=sgd"]
    run.train(small_config(photo_root, *given, "fit.epochs=1"), first, console=QUIET)
    state = load(first / LAST, FitState)
    state.optimizer["state"][0]["momentum_buffer"] = torch.zeros(7)
    save(state, first / LAST)
    config = small_config(photo_root, *given, "fit.epochs=2", f"fit.resume={first}")
    with pytest.raises(UserError, match=r"last\.pt is damaged"):
        run.train(config, tmp_path / "second", console=QUIET)
    with pytest.raises(UserError, match=r"last\.pt is damaged"):
        run.follow(config)  # as a rank after the first


def test_a_resumed_run_takes_the_best_model_along_and_ends_its_pipelines(photo_root: Path, tmp_path: Path) -> None:
    """No later epoch is better, as nothing is learned."""
    learners: list[Learner] = []
    still = on("after_epoch", lambda learner: learner.find(run.Recorder).rows[-1].update(val_accuracy=0.5))
    keep = on("after_fit", learners.append)

    def train(folder: Path, *overrides: str) -> None:
        config = small_config(photo_root, "fit.lr=1e-30", *BARE, *overrides)
        run.train(replace(config, callbacks=(lambda: still, *config.callbacks, lambda: keep)), folder, console=QUIET)

    train(tmp_path / "first", "fit.epochs=1")
    train(tmp_path / "second", "fit.epochs=2", f"fit.resume={tmp_path / 'first'}")
    assert (tmp_path / "second" / BEST).read_bytes() == (tmp_path / "first" / BEST).read_bytes()
    os.truncate(tmp_path / "first" / BEST, 2**26)  # holes take no space, but their copies would fill the disk
    with pytest.raises(UserError, match="not a checkpoint"):
        train(tmp_path / "third", "fit.epochs=2", f"fit.resume={tmp_path / 'first'}")
    assert not list((tmp_path / "third").glob(".*.part"))
    for loader in (loader for learner in learners for loader in (learner.train_loader, learner.val_loader)):
        assert isinstance(loader, Loader)
        assert loader._pipeline is None


@pytest.mark.parametrize("error", [UserError("gone."), NonFiniteLossError("nan.")])
def test_a_failed_run_says_how_to_resume_where_that_helps(error: UserError, photo_root: Path, tmp_path: Path) -> None:
    """From where the loss became no number, it would become so again."""
    config = small_config(photo_root, "fit.epochs=2", *BARE)
    fails = on("before_epoch", raises(error, at=1))
    with pytest.raises(UserError) as caught:
        run.train(replace(config, callbacks=(*config.callbacks, lambda: fails)), tmp_path / "run", console=QUIET)
    hint = " fit.resume=run continues from its last checkpoint."
    assert str(caught.value) == ("nan." if isinstance(error, NonFiniteLossError) else f"gone.{hint}")


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("graph", ["true", "false"])
def test_a_run_on_the_second_gpu_uses_nothing_of_the_first(graph: str, photo_root: Path, tmp_path: Path) -> None:
    torch.cuda.init()  # without it, there are no statistics
    before = torch.cuda.memory_stats(0)["allocated_bytes.all.allocated"]
    given = ["fit.device=cuda:1", "fit.precision=fp16", "aug.cache=gpu", "fit.epochs=3", f"fit.graph={graph}"]
    summary = run.train(small_config(photo_root, *given), tmp_path / "run", console=QUIET)
    assert summary.status == "finished"
    assert torch.cuda.memory_stats(0)["allocated_bytes.all.allocated"] == before
    assert torch.cuda.current_device() == 0
    assert evaluate(tmp_path / "run").images == 6


@needs_gpu
@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.float16), ("fp16", torch.float16)]
)
def test_a_gpu_gets_images_of_half_the_size_for_16_bits(
    precision: str, dtype: torch.dtype, photo_root: Path, tmp_path: Path
) -> None:
    learner = prepared(photo_root, tmp_path, "fit.device=cuda", f"fit.precision={precision}")
    for loader in (learner.train_loader, learner.val_loader):
        assert next(iter(loader)).images.dtype == dtype
        assert isinstance(loader, Loader)
        loader.close()


def test_a_rank_frees_its_model_before_it_leaves_the_others(photo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs, recorded work that still refers to the other ranks would keep all of them from ending."""
    models: list[ReferenceType[torch.nn.Module]] = []
    alive: list[bool] = []
    release = build.release_memory

    def watched(*given: Any, **options: Any) -> Learner:
        learner = make_learner(*given, **options)
        models.append(ref(learner.model))
        return learner

    def released() -> None:
        release()
        alive.extend(model() is not None for model in models)

    monkeypatch.setattr(run, "make_learner", watched)
    monkeypatch.setattr(build, "release_memory", released)
    assert run.follow(small_config(photo_root, "fit.epochs=1")) == "finished"
    assert alive == [False]
