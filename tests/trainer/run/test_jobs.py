"""What a job needs is imported while its GPU starts."""

import pytest

from trainer.run import jobs
from trainer.run.fit import Fit


@pytest.mark.parametrize(
    ("device", "rank", "woken"),
    [("cpu", "0", []), ("auto", "0", [0]), ("cuda", "0", [0]), ("cuda:2", "0", [2]), ("auto", "3", [3])],
)
def test_the_gpu_of_a_run_is_woken(device: str, rank: str, woken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    if rank != "0":
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
            monkeypatch.setenv(name, value)
    asked: list[int] = []
    monkeypatch.setattr(jobs, "wake_driver", asked.append)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # nothing is done with it here
    jobs._wake(Fit(device=device))
    assert asked == woken
