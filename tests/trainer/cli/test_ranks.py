"""Several processes that train one model: the same as one process with the same batches, and exact when resumed."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import assert_same, make_learner, on, raises
from rank_runs import PARTS, STOP, SUPPORT, WHOLE, command, draw_images, environment, settings_of, state_of
from runs import read_metrics, rows_of

from augment.support.errors import UserError
from trainer.loop.callback import CancelStep
from trainer.run import ranks
from trainer.run.config.schema import load_config

FITS: Mapping[str, Sequence[str]] = {
    "whole": [
        *(*WHOLE, "data.balance=weights", "fit.label_smoothing=0.1", "fit.optimizer=adamw"),
        *("++callbacks.ema={decay: 0.9, warmup: false}", "++callbacks.grad_clip.max_norm=0.5"),
    ],
    "accumulated": ["fit.batch_size=6", "fit.accumulate=4", *WHOLE[1:]],  # 6, 6 and 1 images make a step
    "norm": [*WHOLE, "model.dropout=1"],
    "limited": [*PARTS, "fit.limit_batches=2", "fit.epochs=1"],
    "more": [*PARTS, "fit.limit_batches=2", "fit.resume=../1/limited", "++callbacks.trouble={}"],
    "wrong": ["fit.lrr=3"],
    "stopped": [*PARTS, *STOP],
    "resumed": [*PARTS, *STOP, "fit.resume=stopped"],
    "command": [*PARTS, "fit.gpus=3"],
}
ALIKE = ("whole", "accumulated")
BY_ONE = (*ALIKE, "norm", "limited")
# What rank 0 is given more in the fit "command", and what the others are.
FIRST, OTHERS = ["run.name=a", "fit.resume=auto"], ["fit.lr=0.2", "aug.train.flip.p=0.25", "run.name=b"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_images(tmp_path_factory.mktemp("ranks") / "images")


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of the fits that each number of ranks trained; beside them in alone/, one rank resumed another fit."""
    root = tmp_path_factory.mktemp("ranks")
    given = {}
    for size, fits in {1: BY_ONE, 3: [name for name in FITS if name != "limited"]}.items():
        (root / str(size)).mkdir()
        more = [{"command": OTHERS if rank else FIRST} for rank in range(size)]
        given[str(root / str(size))] = [
            [(name, [*settings_of(images), *FITS[name], *others.get(name, [])]) for name in fits] for others in more
        ]
    (root / "alone").mkdir()
    resumed = [*settings_of(images), *PARTS, *STOP, "fit.resume=../3/stopped", "fit.gpus=1"]
    given[str(root / "alone")] = [[("run", resumed)]]
    program = [sys.executable, str(SUPPORT / "rank_program.py")]
    ended = subprocess.run(program, env=environment(), input=json.dumps(given), text=True, stderr=-1, timeout=300)
    assert ended.returncode == 0, "".join([ended.stderr, *(file.read_text() for file in root.glob("*/*.txt"))])
    return {size: root / str(size) for size in (1, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("fit", ALIKE)
def test_ranks_train_as_one_process_does(fit: str, runs: dict[int, Path]) -> None:
    one, three = state_of(runs[1] / fit), state_of(runs[3] / fit)
    assert three.position == one.position
    assert (one.ranks, three.ranks) == (1, 3)
    devices = [json.loads((runs[size] / fit / "run.json").read_text())["device"] for size in runs]
    assert devices == ["CPU", "CPU, 3 processes"]
    for name, value in one.model.items():
        torch.testing.assert_close(three.model[name], value, rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(rows_of(runs[1] / fit), rows_of(runs[3] / fit), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3, nan_ok=True)


@pytest.mark.slow
def test_running_statistics_are_those_of_all_samples(runs: dict[int, Path]) -> None:
    one, three = (state_of(runs[size] / "norm").model for size in runs)
    # In an epoch's first step, ten times the change of the moving average, and of its rounding.
    torch.testing.assert_close(three["0.running_mean"], one["0.running_mean"], rtol=0, atol=1e-6)
    assert three["0.num_batches_tracked"] == one["0.num_batches_tracked"]


@pytest.mark.slow
def test_ranks_draw_different_random_numbers(runs: dict[int, Path]) -> None:
    for state in (state_of(runs[3] / name) for name in ("command", "more")):
        assert len({str(state.for_rank(rank).random["cpu"].tolist()) for rank in range(3)}) == 3


@pytest.mark.slow
def test_ranks_stop_together_and_resume_exactly_and_train_what_the_first_one_is_given(runs: dict[int, Path]) -> None:
    stopped, resumed, straight = (runs[3] / name for name in ("stopped", "resumed", "command"))
    assert json.loads((stopped / "summary.json").read_text())["status"] == "interrupted"
    assert state_of(stopped).position == (1, 2)  # rank 2 asked after step 6
    assert rows_of(resumed) == rows_of(straight)
    assert_same(
        vars(state_of(resumed)) | {"callbacks": {}, "others": []},
        vars(state_of(straight)) | {"callbacks": {}, "others": []},
    )


@pytest.mark.slow
def test_after_an_epoch_any_number_of_ranks_resumes(runs: dict[int, Path]) -> None:
    limited, more = rows_of(runs[1] / "limited"), rows_of(runs[3] / "more")
    assert more[:1] == limited
    assert state_of(runs[3] / "more").position == (2, 0)
    assert json.loads((runs[3] / "more" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_another_number_of_ranks_finishes_an_epoch(runs: dict[int, Path]) -> None:
    alone = runs[1].parent / "alone"
    assert "fit.gpus=1: the saved run stopped within epoch 2 with fit.gpus=3." in (alone / "0.txt").read_text()
    assert rows_of(alone / "run")[0] == rows_of(runs[3] / "stopped")[0]
    assert state_of(alone / "run").position == (2, 0)


def test_a_part_of_a_step_needs_the_same_number_of_ranks() -> None:
    learner = make_learner(on("before_step", raises(CancelStep, 2)), epochs=1)
    learner.fit()
    state = replace(learner.state(), position=(0, 2), others=[{}, {}])
    with pytest.raises(UserError, match=r"^fit\.gpus=1, .* Resume with fit\.gpus=3"):
        make_learner().restore(state)


@pytest.mark.slow
def test_each_sample_counts_once(runs: dict[int, Path]) -> None:
    best = torch.load(runs[3] / "command" / "best.pt", weights_only=True)
    assert best["samples"]["index"].tolist() == list(range(7))
    (_, row) = read_metrics(runs[3] / "command")
    right = (best["samples"]["prediction"] == best["samples"]["target"]).double().mean().item()
    assert best["row"]["val_accuracy"] == pytest.approx(right)
    assert row["train_accuracy"] * 13 == pytest.approx(round(row["train_accuracy"] * 13))


@pytest.mark.slow
def test_the_first_rank_speaks_for_all(runs: dict[int, Path]) -> None:
    said = [(runs[3] / f"{rank}.txt").read_text() for rank in range(3)]
    assert ["finished after 2 epochs" in text for text in said] == [True, False, False]


@pytest.mark.slow
def test_the_command_starts_ranks_and_one_that_fails_ends_the_others(images: Path, tmp_path: Path) -> None:
    ended = command(tmp_path, images, "hydra.run.dir=run", trouble="fail/1/2")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    cause = "rank 1: RuntimeError: shape '[2]' is invalid"
    assert f"error: {cause}" in ended.stderr
    assert ended.stderr.count("RuntimeError") == ended.stdout.count("train loss") == 1
    assert "error: rank 1 failed. Its message states the reason. fit.resume=run continues" in ended.stderr
    assert cause in json.loads((tmp_path / "run" / "summary.json").read_text())["error"]
    assert load_config(tmp_path / "run")["fit"]["gpus"] == 2


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_all_ranks_is_printed_by_the_first(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("trainer.run.ranks.report", lambda _: first)
    monkeypatch.setattr("trainer.run.ranks.reported", lambda: "rank 1: the same")
    error = UserError("the same fit.resume=old. fit.resume=run continues.")
    short = "rank 1 failed. Its message states the reason."
    assert str(ranks.error_to_print(error)) == (str(error) if first else short)
    error.hint = "fit.resume=run continues."
    assert str(ranks.error_to_print(error)) == (str(error) if first else f"{short} {error.hint}")
