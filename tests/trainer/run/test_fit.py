"""The section `fit`: schedules, optimizers, the device, threads, and how processes share batches."""

from typing import Any

import pytest
import torch
from runs import config_of

from augment.support.errors import UserError
from trainer.optim.schedules import Schedule, constant, flat_cos, one_cycle
from trainer.run.config.checks import check_config


@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        ({"lr": 0.5}, one_cycle(0.5, start=0.02, end=0.0, warmup=0.3)),
        (
            {"lr": 0.9, "start_factor": 0.5, "end_factor": 0.25, "warmup": 0.1},
            one_cycle(0.9, start=0.45, end=0.225, warmup=0.1),
        ),
        ({"lr": 0.5, "schedule": "flat_cos", "flat": 0.5, "end_factor": 0.5}, flat_cos(0.5, end=0.25, flat=0.5)),
        ({"lr": 0.5, "schedule": "constant", "warmup": 0.9}, constant(0.5)),
    ],
)
def test_the_schedule(fit: dict[str, Any], expected: Schedule) -> None:
    schedule, positions = config_of(fit=fit).fit.schedules()["lr"], (0.0, 0.05, 0.1, 0.3, 0.5, 0.6, 0.8, 1.0)
    assert [*map(schedule, positions)] == [*map(expected, positions)]


def test_momentum_runs_against_the_learning_rate() -> None:
    schedules = config_of(fit={"lr": 1, "momentum": 0.95, "momentum_low": 0.85, "warmup": 0.3}).fit.schedules()
    assert [schedules["momentum"](x) for x in (0, 0.15, 0.3, 1)] == pytest.approx([0.95, 0.9, 0.85, 0.95])
    assert schedules["lr"](0.3) == 1
    assert set(config_of().fit.schedules()) == {"lr"}


@pytest.mark.parametrize(
    ("device", "gpu", "expected"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_the_device(device: str, gpu: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(gpu))
    assert config_of(fit={"device": device}).fit.torch_device() == torch.device(expected)


@pytest.mark.usefixtures("own_folder", "sample_drawn")
def test_a_gpu_has_a_number_and_may_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^fit\.device=cuda: .* no GPU here\. Allowed: auto, cpu\.$"):
        check_config(config_of(fit={"device": "cuda"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert config_of(fit={"device": "cuda:1"}).fit.torch_device() == torch.device("cuda:1")
    message = r"^fit\.device=cuda:2: PyTorch sees 2 GPUs here\. Allowed: auto, cpu, cuda:0, cuda:1\.$"
    with pytest.raises(UserError, match=message):
        config_of(fit={"device": "cuda:2"}).fit.torch_device()


@pytest.mark.parametrize("given", [{"batch_size": 9}, {"stages": {"small": {"batch_size": 9}}, "batch_size": 8}])
def test_processes_share_batches_evenly(given: dict[str, Any]) -> None:
    assert config_of(fit={"gpus": 2, "batch_size": 8}).fit.gpus == 2
    with pytest.raises(UserError, match=r"batch_size=9 is not divisible .* a multiple of 2, such as 8\.$"):
        config_of(fit=given | {"gpus": 2})


def test_what_torchrun_started_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert config_of().fit.gpus == 4
    with pytest.raises(UserError, match=r"^fit\.gpus=2, but torchrun started 4 processes\. Set fit\.gpus=4 or null\.$"):
        config_of(fit={"gpus": 2})
