"""Two ranks of which one does otherwise than the other: both end, and one says why."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from apart_program import skips
from rank_runs import SUPPORT, environment

pytestmark = pytest.mark.slow

FITS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fit": ("cancels", {"event": "after_batch", "levels": ["fit", None]}),
    "epoch": ("cancels", {"event": "before_batch", "levels": ["epoch", None]}),
    "train": ("cancels", {"event": "after_step", "levels": [None, "train"]}),
    "batch": ("cancels", {"event": "before_batch", "levels": ["batch", None]}),
    "step": ("cancels", {"event": "before_step", "levels": [None, "step"]}),
    "validate": ("cancels", {"event": "before_validate", "levels": ["validate", None], "at": [3, 3]}),
    "late": ("cancels", {"event": "after_epoch", "levels": ["fit", None], "at": [0, 0], "epoch": 1}),
    "others": ("cancels", {"event": "after_batch", "levels": ["fit", "epoch"]}),
    "later": ("cancels", {"event": "after_batch", "levels": ["fit", "fit"], "at": [1, 2]}),
    "same step": ("cancels", {"event": "before_batch", "levels": ["batch"] * 2, "at": [1, 2], "accumulate": 2}),
    "alike": ("cancels", {"event": "before_batch", "levels": ["batch", "batch"]}),
    "branch": ("branches", {"first": [3, 9]}),
    "skipped step": ("skips", {"level": "step"}),
    "skipped batch": ("skips", {"level": "batch"}),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, list[str]]:
    """What both ranks of each fit returned or raised."""
    command = [sys.executable, str(SUPPORT / "apart_program.py"), json.dumps([*FITS.values()])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    return dict(zip(FITS, json.loads(done.stdout.splitlines()[-1]), strict=True))  # older PyTorch prints more


@pytest.mark.parametrize("fit", [*FITS][: [*FITS].index("alike")])
def test_a_rank_that_cancels_alone_ends_all(fit: str, ended: dict[str, list[str]]) -> None:
    levels = FITS[fit][1]["levels"]
    said = [text for text in ended[fit] if not text.startswith("LostRankError: ")]
    assert said
    for text in said:
        rank = ended[fit].index(text)
        assert text.startswith(f"UserError: Cancel{str(levels[rank]).capitalize()} ({SUPPORT}/apart_program.py, line ")
        assert f") was raised on rank {rank}, but not on rank {1 - rank} at the same time. Allowed: " in text


@pytest.mark.parametrize("fit", ["alike", "branch"])
def test_ranks_that_cancel_alike_or_use_other_parameters_train_on(fit: str, ended: dict[str, list[str]]) -> None:
    one, other = map(float, ended[fit])
    assert one == other


@pytest.mark.parametrize("level", ["step", "batch"])
def test_gradients_of_a_step_that_is_left_out_count_once(level: str, ended: dict[str, list[str]]) -> None:
    one, other = map(float, ended[f"skipped {level}"])
    assert one == other == pytest.approx(float(skips(0, level, ranks=1)), rel=1e-6)
