"""`fit.batch_size=auto`: the search, the learning rate, what a run records, and what an error for memory names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu
from omegaconf import OmegaConf
from runs import BARE

import trainer
from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.loop.callback import Callback
from trainer.loop.learner import Learner
from trainer.loop.ranks import Ranks, alone, current
from trainer.run import batch_size, failures
from trainer.run.batch_size import largest_batch, smaller_batch_size, with_batch_size
from trainer.run.config.equality import identity
from trainer.run.config.schema import CONFIG_FILE, Config, load_config, parse_config


@pytest.mark.parametrize("limit", [2, 7, 8, 9, 15, 16, 24, 100, 133, 1000])
@pytest.mark.parametrize("most", [2, 8, 50, 4096])
def test_the_search_ends_just_below_the_limit(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    found = largest_batch(fits, most)
    assert found <= min(max(limit, 2), most)
    assert found < 8 or found % 8 == 0
    assert found in [2, *tried]
    assert len(tried) == len(set(tried)) <= 16
    reachable = min(limit, most)
    assert found >= 8 or reachable < 16
    assert found + max(16, found // 8) > reachable or found == 4


def config_of(*overrides: str) -> Config:
    return parse_config(compose(["data=sample", "aug=none", "aug.size=16", "fit.batch_size=auto", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "rate"),
    [
        (["fit.lr=0.02"], 0.08),
        (["fit.lr=0.02", "fit.base_batch_size=128"], 0.04),
        (["fit.optimizer=adamw", "fit.lr=0.002"], 0.004),
    ],
)
def test_the_learning_rate_follows_the_batch_size(overrides: list[str], rate: float) -> None:
    config = config_of("fit.device=cpu", *overrides).sized(256, "this is a test")
    assert (config.fit.batch_size, config.fit.lr) == (256, pytest.approx(rate))
    assert config.resolved["fit"]["lr"] == config.fit.lr
    assert f"fit.lr={rate:g}" in config.notes[-1]


def test_without_a_gpu_the_batch_size_is_fixed() -> None:
    config = with_batch_size(config_of("fit.device=cpu", "fit.base_batch_size=16", "fit.lr=0.5"))
    assert (config.fit.batch_size, config.fit.lr) == (16, 0.5)
    assert "there is no GPU" in config.notes[-1]
    assert with_batch_size(config) is config


@pytest.fixture
def limited(own_folder: Path, sample_drawn: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Pretend that there is a GPU on which batches of up to 40 images fit. Return the batch sizes that were tried."""
    tried: list[int] = []

    @contextmanager
    def trials(_: Config) -> Iterator[Any]:
        with alone():
            yield lambda size: tried.append(size) or size <= 40

    monkeypatch.setattr(batch_size, "_trials", trials)
    gpu = torch.device("cuda")
    with monkeypatch.context() as patch:
        patch.setattr("trainer.loop.settings.LoopSettings.torch_device", lambda _: gpu)
        yield tried


def test_all_ranks_agree_on_the_smallest_size(limited: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Ranks):
        """Two ranks, of which the other one found 24."""

        def __init__(self) -> None:
            super().__init__()
            self.size = 2

        def gather(self, value: Any) -> list[Any]:
            return [value, 24]

    monkeypatch.setattr("trainer.loop.ranks._joined", two := Two())
    monkeypatch.setattr(batch_size, "_MIN_BATCHES", 1)
    assert with_batch_size(config_of()).fit.batch_size == 48
    assert current() is two
    assert max(limited) > 24


def test_an_epoch_keeps_enough_batches(limited: list[int]) -> None:
    config = config_of()
    found = with_batch_size(config).fit.batch_size
    assert isinstance(found, int)
    assert config.dataset.train.images // found >= 16


def test_out_of_memory_names_a_size_that_fits(limited: list[int]) -> None:
    config = config_of("fit.batch_size=256")
    error = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    assert smaller_batch_size(config, error) == 32
    assert limited == [128, 64, 32]
    assert smaller_batch_size(config, RuntimeError("shape mismatch")) == 0


def test_the_error_names_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = type("Properties", (), {"name": "NVIDIA H100", "total_memory": 80 * 2**30})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    config = config_of("fit.batch_size=256")
    monkeypatch.setattr(type(config.fit), "torch_device", lambda _: torch.device("cuda"))
    error = failures.explain(torch.cuda.OutOfMemoryError("CUDA out of memory."), config, Path(), fits=32)
    assert "Try fit.batch_size=32" in str(error)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["fit.batch_size=automatic"], r"^fit\.batch_size: .* 1000000, or auto"),
        (["fit.batch_size=0"], r"^fit\.batch_size: 0 is not allowed"),
        (["aug.cache=gpu"], r"^fit\.batch_size=auto does not work with .* Set a number"),
        (["+fit.stages.all.size=8"], r"^fit\.batch_size=auto does not work with .* Set a number"),
    ],
)
def test_what_does_not_work_is_a_sentence(overrides: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(*overrides)


def test_identities_of_runs_without_auto_stay_the_same() -> None:
    usual = config_of("fit.batch_size=64")
    assert "base_batch_size" not in identity(usual.resolved)["fit"]
    assert identity(config_of("fit.base_batch_size=8").resolved)["fit"]["base_batch_size"] == 8


@pytest.mark.usefixtures("sample_drawn")
def test_a_run_records_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It resumes with the same numbers, and the same command continues it."""
    monkeypatch.chdir(tmp_path)
    given = ["data=sample", "aug=none", "aug.size=16", "fit.device=cpu", "fit.threads=1", "fit.limit_batches=2", *BARE]
    auto = [*given, "fit.batch_size=auto", "fit.base_batch_size=16", "fit.resume=auto"]
    first = trainer.train(*auto, "fit.epochs=1")
    saved = load_config(first.folder)["fit"]
    assert (saved["batch_size"], saved["lr"]) == (16, 0.02)
    again = trainer.train(*auto, "fit.epochs=1")
    assert again.folder == first.folder
    plain = trainer.train(*given, "fit.batch_size=16", "fit.epochs=1")
    assert plain.last["train_loss"] == first.last["train_loss"]
    longer = trainer.train("fit.epochs=2", "fit.batch_size=auto", f"fit.resume={first.folder}")
    assert load_config(longer.folder)["fit"]["batch_size"] == 16
    with pytest.raises(UserError, match=r"^fit\.batch_size=auto works only when training a run"):
        trainer.load_model(first.folder, "fit.batch_size=auto", device="cpu").predict(np.zeros((16, 16, 3), np.uint8))


@pytest.mark.usefixtures("own_folder", "sample_drawn")
def test_a_trial_trains_and_validates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation needs memory beside training, and its recorded pass keeps it."""
    passes = set()

    class Passes(Callback):
        def after_batch(self, learner: Learner) -> None:
            passes.add(learner.training)

    make = batch_size.make_learner
    monkeypatch.setattr(batch_size, "make_learner", lambda *given, **_: make(*given, callbacks=(Passes(),)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8, 8))
    config = config_of("fit.device=cpu", "fit.threads=1")
    assert batch_size._fits(config, 4, rest=8)
    assert passes == {True, False}


@needs_gpu
@pytest.mark.alone
def test_the_largest_batch_on_a_gpu_leaves_the_run_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of 4 GiB, the search ends below the training images, and a run with its numbers is equal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_size, "_MIN_BATCHES", 1)
    total = torch.cuda.get_device_properties(0).total_memory
    given = ["data=sample", "aug=none", "aug.size=224", "model=xresnet18", "fit.device=cuda", "fit.epochs=1"]
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
    try:
        found = trainer.train(*given, "fit.batch_size=auto")
        fit = OmegaConf.load(found.folder / CONFIG_FILE).fit
        assert 8 <= fit.batch_size < 320
        assert fit.batch_size % 8 == 0
        same = trainer.train(*given, f"fit.batch_size={fit.batch_size}", f"fit.lr={fit.lr}")
        assert same.last["train_loss"] == pytest.approx(found.last["train_loss"], rel=1e-3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@needs_gpu
@pytest.mark.alone
def test_out_of_memory_on_a_gpu_names_a_smaller_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
    try:
        with pytest.raises(UserError, match=r"^out of memory on the GPU .* Try fit\.batch_size=\d+ \(it fits\)"):
            trainer.train("data=sample", "aug=none", "aug.size=224", "model=xresnet18", "fit.batch_size=320")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
