"""A disk whose power fails: what may be in a folder after every operation of a save that was not waited for."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import pytest


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
