"""Failures that a user can do something about end a run in one sentence, and leave its checkpoint whole."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import on
from rich.console import Console
from runs import draw_classes

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.plots import BATCH
from trainer.loop.checkpoint import LAST
from trainer.loop.learner import Learner
from trainer.run.config.schema import Config, parse_config
from trainer.run.failures import explain, explained, out_of_memory
from trainer.run.train import follow, train


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    draw_classes(tmp_path / "data", ("blue", "green", "red"), 1)
    small = ["aug.size=16", "fit.batch_size=4", "fit.device=cpu", "fit.threads=1", "fit.epochs=3"]
    return parse_config(
        compose(["data=folder", "data.root=data", *small, "callbacks.progress_bar=null", "callbacks.report=null"])
    )


def failing(config: Config, event: str, epoch: int, act: Callable[[], None]) -> str:
    """Train in the folder `run`, let something happen at an event of an epoch, and return the error of the run."""

    def happens(learner: Learner) -> None:
        if learner.progress.epoch == epoch:
            learner.find(Checkpoint)._finish_writing()
            while not Path("run", BATCH).is_file():  # whatever is being written then comes afterwards
                time.sleep(0.01)
            act()

    callbacks = (lambda: on(event, happens), *config.callbacks)
    with pytest.raises(UserError) as caught:
        train(replace(config, callbacks=callbacks), Path("run"), console=Console(quiet=True))
    return str(caught.value)


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_ended_the_run_is_said_though_clean_up_fails_too(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.figures.batches.plot_outputs", lambda *_: no_room())
    message = failing(config, "before_validate", 1, lambda: (_ for _ in ()).throw(UserError("the data are gone.")))
    assert message == "the data are gone. fit.resume=run continues from its last checkpoint."


def test_a_failure_has_its_cause(config: Config) -> None:
    """Developers need the original error."""
    callbacks = (lambda: on("before_validate", lambda _: no_room()), *config.callbacks)
    with pytest.raises(UserError) as caught:
        train(replace(config, callbacks=callbacks), Path("run"), console=Console(quiet=True))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_deleted_is_not_made_again(again: bool, config: Config) -> None:
    def delete() -> None:
        Path("run").rename("elsewhere")  # so that a new one has another inode for sure
        if again:
            Path("run").mkdir()

    assert (
        failing(config, "before_validate", 1, delete)
        == "run: the run's folder was deleted during the run. Start the run again."
    )
    assert not (Path("run") / LAST).exists()
    assert Path("run").exists() == again


def test_a_batch_of_a_single_image_says_what_helps(config: Config) -> None:
    config = replace(config, fit=replace(config.fit, batch_size=2))
    with pytest.raises(UserError, match=r"^A training batch is a single image, .* fit\.drop_last=true"):
        train(config, Path("run"), console=Console(quiet=True))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("Critical error in pipeline:\nencountered:\n\nstd::bad_alloc\n"), True),
        (MemoryError("Unable to allocate 5 GiB"), True),
        (RuntimeError("shape mismatch"), False),
        (UserError("out of memory"), False),
    ],
)
def test_memory_errors_of_all_libraries_are_known(error: Exception, expected: bool) -> None:
    assert bool(out_of_memory(error)) is expected


@pytest.fixture
def on_gpu(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration, as if there was a GPU."""
    properties = type("Properties", (), {"name": "NVIDIA H100", "total_memory": 80 * 2**30})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(type(config.fit), "torch_device", lambda _: torch.device("cuda"))
    return config


def test_out_of_memory_says_what_was_tried_and_what_to_lower(on_gpu: Config, tmp_path: Path) -> None:
    error = explain(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), on_gpu, tmp_path)
    assert str(error) == (
        "out of memory on the GPU (NVIDIA H100, 80 GiB) with cnn, batches of 4 images at 16 px, fit.precision=fp32: "
        "CUDA out of memory. Tried to allocate 2 GiB. Try a smaller fit.batch_size with a larger fit.accumulate, "
        "a smaller aug.size, a smaller model, fit.precision=bf16, or a GPU that nothing else uses."
    )


TOO_MUCH = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "513802240 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize("error", [RuntimeError(TOO_MUCH), MemoryError()])
def test_a_batch_too_large_for_the_cpu_is_a_sentence_with_a_way_out(
    error: Exception, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.sysconf
    monkeypatch.setattr(
        "os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**22}.get(name) or known(name)
    )

    def fill() -> None:
        raise error

    message = failing(config, "before_batch", 1, fill)
    what = TOO_MUCH if error.args else "MemoryError"
    assert message == (
        "out of memory on the host (16 GiB) with cnn, batches of 4 images at 16 px, fit.precision=fp32: "
        f"{what}. Try a smaller fit.batch_size with a larger fit.accumulate, a smaller aug.size, "
        "a smaller model, fit.precision=bf16, or a machine with more memory. "
        "fit.resume=run continues from its last checkpoint."
    )


def test_tools_say_what_to_lower_too(on_gpu: Config) -> None:
    with pytest.raises(UserError) as caught, explained(on_gpu, training=False):
        no_memory()
    advice = "Try a smaller fit.batch_size, fit.device=cpu, fit.precision=bf16, or a GPU that nothing else uses."
    assert str(caught.value).endswith(advice)
    with pytest.raises(ZeroDivisionError), explained(on_gpu, training=False):
        raise ZeroDivisionError


def test_a_rank_that_finds_too_little_memory_says_so(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "fit", no_memory)
    with pytest.raises(UserError, match=r"^out of memory on the host .* Try a smaller fit"):
        follow(config)


def no_memory(*_: object) -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
