"""Programs: policies that one kernel runs on the GPU, in place of DALI's operators."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded import decoded
from fakes import needs_gpu, refuse_waiting
from pipelines import SIZE, plan_of, run

from augment.data.dataset import ImageRef
from augment.pipeline import build
from augment.pipeline.program import WIDTH, Program, kernels_run

POLICIES = ["trivial_augment", "rand_augment", "auto_augment"]


@pytest.mark.parametrize(
    ("steps", "known"),
    [
        *(({policy: {}}, True) for policy in POLICIES),
        ({"flip": {}, "solarize": {}, "equalize": {"p": 0.1}}, True),
        ({"rotate": {}, "contrast": {}}, False),  # few operators, which DALI runs beside decoding
        ({"rand_augment": {}, "gaussian_noise": {}}, False),
        ({"rand_augment": {"border": "wrap"}}, False),
    ],
)
def test_programs_are_for_policies_that_the_kernel_knows(steps: dict[str, Any], known: bool) -> None:
    assert (Program.of(plan_of(steps, "train")) is not None) == known


def test_kernels_do_not_run_on_the_cpu(squares: tuple[ImageRef, ...]) -> None:
    if not torch.cuda.is_available():
        assert not kernels_run()
    images, _ = run(plan_of({"rand_augment": {}}), squares, torch.device("cpu"))
    assert images.shape == (len(squares), SIZE, SIZE, 3)


def test_kernels_are_tried_on_the_gpu_that_will_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that builds a pipeline begins with the first GPU, whichever its process uses."""
    asked: list[torch.device] = []

    def zeros(*_: int, device: torch.device, **__: Any) -> None:
        asked.append(device)
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", zeros)
    assert not kernels_run.__wrapped__(1)
    assert asked == [torch.device("cuda:1")]


def interpreted(*arguments: str) -> Any:
    pytest.importorskip("triton")
    script = Path(__file__).parents[2] / "support" / "interpreted.py"
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_kernel_matches_operators_in_an_interpreter() -> None:
    found = interpreted()
    assert found.pop("resumed")
    assert found.pop("transformed")
    for name, off in found.items():
        # A level that is rounded otherwise moves further when contrast is stretched.
        assert off["most"] <= 3, name
        assert off["mean"] < 0.02, name
        assert off["skipped"] == 0, name


@pytest.mark.long
def test_the_mean_of_a_large_image() -> None:
    assert interpreted("large") == [250]


@needs_gpu
@pytest.mark.parametrize("policy", POLICIES)
def test_the_kernel_matches_operators_on_the_gpu(
    policy: str, photos: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels_run()
    cuda, images = torch.device("cuda"), decoded(photos) * 20
    plan = plan_of({"flip": {"p": 0.5}, policy: {}})
    found, _ = run(plan, images, cuda)
    with refuse_waiting():
        program = Program.of(plan)
        assert program is not None
        batch = torch.zeros(4, SIZE, SIZE, 3, dtype=torch.uint8, device=cuda)
        program.run(batch, torch.zeros(4, 9, WIDTH, device=cuda), half=True, raw=False)
    monkeypatch.setattr(build, "program_of", lambda plan, placement: None)
    expected, _ = run(plan, images, cuda)
    on_cpu, _ = run(plan, images, torch.device("cpu"))
    for other in (expected, on_cpu):
        off = np.abs(found.astype(int) - other)
        # One level more or less may cross a threshold of the next op.
        assert (off > 3).mean() < 1e-3
        assert off.mean() < 0.05
    assert np.abs(found.astype(int) - run(plan_of({}), images, cuda)[0]).mean() > 3
