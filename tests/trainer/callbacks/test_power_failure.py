"""Power failures: whatever the disk had not been asked to keep may be lost, and a run still resumes."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import pytest
from fakes import make_learner, on

from augment.support.errors import UserError
from trainer.callbacks.checkpoint import Checkpoint
from trainer.callbacks.recorder import Recorder
from trainer.loop import checkpoint
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.loop.learner import Learner
from trainer.run.folder.reader import RunFolder


@dataclass
class Disk:
    """Records what happens in a folder, and rebuilds what a power failure may leave of it.

    Files are told apart by their numbers on the disk. What a file holds is known to be on the disk after its fsync, a
    name after that of the folder; names change in the order in which they were changed, as journals of file systems
    keep it.

    Attributes:
        folder: the folder.
        names: the names in the folder, with the numbers of their files, after each change of them.
        synced: how many of these changes are on the disk for certain.
        now: what each file holds.
        safe: what each file held at its last fsync.
        promise: what the test knows to be on the disk for certain.
        moments: what may be on the disk, at each operation, and what was promised then.
    """

    folder: Path
    names: list[dict[str, int]] = field(default_factory=lambda: [{}])
    synced: int = 0
    now: dict[int, bytes] = field(default_factory=dict)
    safe: dict[int, bytes] = field(default_factory=dict)
    promise: tuple[object, ...] = ()
    moments: dict[tuple[frozenset[tuple[str, bytes]], tuple[object, ...]], None] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)
    _open: dict[int, int] = field(default_factory=dict)

    def look(self) -> None:
        """Notice what was written since the last operation."""
        there = {}
        for file in self.folder.iterdir():
            there[file.name] = number = file.stat().st_ino
            if number not in self._open:  # so that no other file gets its number
                self._open[number] = os.open(file, os.O_RDONLY)
            self.now[number] = file.read_bytes()
        if there != self.names[-1]:
            self.names.append(there)
        self.moments |= {(frozenset(files.items()), self.promise): None for files in self._left()}

    def watch(self, name: str) -> Callable[..., None]:
        """Return a function of `os` that is recorded."""
        do = getattr(os, name)

        def operation(*arguments: Any) -> None:
            with self._lock:
                self.look()  # what was written before
                do(*arguments)
                if name == "fsync":
                    self._sync(os.fstat(arguments[0]).st_ino)
                self.look()

        return operation

    def close(self) -> None:
        """Let go of all files."""
        for descriptor in self._open.values():
            os.close(descriptor)

    def _sync(self, number: int) -> None:
        if number == self.folder.stat().st_ino:
            self.synced = len(self.names) - 1
        elif number in self.now:
            self.safe[number] = self.now[number]

    def _left(self) -> Iterator[dict[str, bytes]]:
        """Yield what a power failure may leave: unsynced names and data as they are, not there, cut, or as zeros."""
        for names in self.names[self.synced :]:
            for how in (_whole, _lost, _cut, _zeros):
                yield {name: how(self.safe.get(file, b""), self.now[file]) for name, file in names.items()}


def _whole(safe: bytes, now: bytes) -> bytes:
    return now


def _lost(safe: bytes, now: bytes) -> bytes:
    return safe


def _cut(safe: bytes, now: bytes) -> bytes:
    return now[: (len(safe) + len(now) + 1) // 2]


def _zeros(safe: bytes, now: bytes) -> bytes:
    return safe + bytes(len(now) - len(safe))


@contextmanager
def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Record every operation in a folder, where files are appended to, but not written over."""
    disk = Disk(folder)
    with monkeypatch.context() as patched:
        for name in ("fsync", "replace", "link", "unlink"):
            patched.setattr(os, name, disk.watch(name))
        yield disk
    disk.look()
    disk.close()


def rebuild(files: Iterable[tuple[str, bytes]], folder: Path) -> None:
    """Write what was left into a folder, in place of what is there."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, content in files:
        (folder / name).write_bytes(content)


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
