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
    "at first": ("cancels", {"event": "before_batch", "levels": ["batch", None], "at": [1, 1]}),
    "branch": ("branches", {"first": [1, 9]}),
    "later branch": ("branches", {"first": [9, 3]}),
    "same branch": ("branches", {"first": [3, 3]}),
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


def test_ranks_that_cancel_alike_train_on(ended: dict[str, list[str]]) -> None:
    one, other = map(float, ended["alike"])
    assert one == other


def test_both_ranks_report_a_cancel_where_they_meet(ended: dict[str, list[str]]) -> None:
    first, second = ended["at first"]
    raised = "was raised on rank 0, but not on rank 1 at the same time."
    assert raised in first
    assert second == f"UserError: CancelBatch {raised}"


def test_the_same_parameters_have_gradients_on_all_ranks(ended: dict[str, list[str]]) -> None:
    wrong = "model: factor has a gradient on rank {}, but none on rank {}. Allowed: "
    assert all(text.startswith(f"UserError: {wrong.format(0, 1)}") for text in ended["branch"])
    first, second = ended["later branch"]
    assert first.startswith("LostRankError: ")
    assert second.startswith(f"UserError: {wrong.format(1, 0)}")
    one, other = map(float, ended["same branch"])
    assert one == other


@pytest.mark.parametrize("level", ["step", "batch"])
def test_gradients_of_a_step_that_is_left_out_count_once(level: str, ended: dict[str, list[str]]) -> None:
    one, other = map(float, ended[f"skipped {level}"])
    assert one == other == pytest.approx(float(skips(0, level, ranks=1)), rel=1e-6)
