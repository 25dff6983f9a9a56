"""Power failures: whatever the disk had not been asked to keep may be lost, and a run still resumes."""

from pathlib import Path

import pytest
from fakes import make_learner, on
from power import Disk, rebuild, recorded

from augment.support.errors import UserError
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.recorder import Recorder
from trainer.loop import checkpoint
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner
from trainer.run.run_folder import RunFolder


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, every_batches: int | None) -> Disk:
    """Fit two epochs; what the disk promises is the position of the last checkpoint, and how many rows there are."""
    folder.mkdir()
    with recorded(folder, monkeypatch) as disk:
        disk.promise = ((0, 0), 0)

        def save(state: FitState | BestModel, path: Path, *, keep: int = 0) -> None:
            checkpoint.save(state, path, keep=keep)
            if isinstance(state, FitState):
                disk.promise = (state.position, disk.promise[1])

        def promise_rows(learner: Learner) -> None:
            disk.promise = (disk.promise[0], len(learner.find(Recorder).rows))

        monkeypatch.setattr("trainer.callbacks.checkpoint.save", save)
        callbacks = (Recorder(), on("after_epoch", promise_rows), Checkpoint(every_batches=every_batches, keep=2))
        make_learner(*callbacks, folder=folder).fit()
    return disk


def faults(disk: Disk, folder: Path) -> list[str]:
    """Return what is wrong after a power failure at any moment."""
    found = []
    for files, (position, rows) in disk.moments:
        rebuild(files, folder)
        try:
            if position != (0, 0) and load(folder / LAST, FitState).position < position:  # type: ignore[operator]
                found.append("an old checkpoint")
            if (folder / BEST).exists():
                load(folder / BEST, BestModel)
            if len(RunFolder(folder).rows) < rows:  # type: ignore[operator]
                found.append("too few rows")
        except UserError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("every_batches", [None, 1])
def test_a_power_failure_at_any_moment_leaves_a_whole_checkpoint_and_all_rows(
    every_batches: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = run(tmp_path / "run", monkeypatch, every_batches)
    # Checkpoints are written in the background: how many rows there are meanwhile depends on the moment.
    assert len({position for _, (position, _) in disk.moments}) >= 3
    assert faults(disk, tmp_path / "left") == []


def test_without_waiting_for_the_disk_it_would_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above tests something."""
    monkeypatch.setattr("augment.support.files.sync", lambda path: None)
    assert faults(run(tmp_path / "run", monkeypatch, None), tmp_path / "left")
