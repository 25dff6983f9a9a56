"""A disk that is full from the n-th operation on: `python -m full_disk FOLDER N TRACE MODULE ...` runs a module on it.

Operations are those below FOLDER that may need room: a new file, a write, an fsync, a new name. The one that finds the
disk full, number N from 0, and all after it fail with ENOSPC; the first write of these is cut in its middle. As on a
real disk, what overwrites a part of a file needs no room. TRACE gets a line for each operation: its kind and its path,
after the old one of a file that is renamed. N = -1 only traces.
"""

import builtins
import errno
import io
import os
import runpy
import sys
from pathlib import Path
from threading import RLock
from typing import Any

CREATE, WRITE, FSYNC, RENAME, LINK = "create", "write", "fsync", "rename", "link"


class FullDisk:
    """Counts operations below a folder, and fails from one of them on.

    Args:
        folder: below which operations count.
        number: of the first operation that fails; negative: none.
        trace: file that lists the operations.
    """

    def __init__(self, folder: Path, number: int, trace: Path) -> None:
        self._folder = f"{folder.resolve()}/"
        self._number = number
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._lock = RLock()
        self.count = 0

    def holds(self, path: Any) -> bool:
        """Return whether a path lies below the folder."""
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self._folder)

    def is_full(self, kind: str, *paths: Any) -> bool:
        """Count an operation; return whether it fails."""
        with self._lock:
            os.write(self._trace, "\t".join([kind, *map(os.path.abspath, paths)]).encode() + b"\n")
            self.count += 1
            return 0 <= self._number < self.count

    def use(self, kind: str, *paths: Any) -> None:
        """Count an operation.

        Raises:
            OSError: it fails.
        """
        if self.is_full(kind, *paths):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *(map(str, paths) if kind != FSYNC else ()))

    def install(self) -> None:
        """Replace the functions of Python that write."""
        real_open, real_os_open, pwrite, fsync = io.open, os.open, os.pwrite, os.fsync

        def open_file(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
            path = _path_of(file) if isinstance(file, int) else file
            if not set(mode) & set("wax+") or not self.holds(path):
                return real_open(file, mode, buffering, *more, **named)
            if not os.path.exists(path):
                self.use(CREATE, path)
            raw = _File(file, mode.replace("b", "").replace("t", ""), path, self)
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, *more, **named)

        def open_descriptor(file: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_CREAT and self.holds(file) and not os.path.exists(file):
                self.use(CREATE, file)
            return real_os_open(file, flags, *more, **named)

        def write_at(descriptor: int, data: bytes, position: int) -> int:
            if self.holds(path := _path_of(descriptor)):
                self.use(WRITE, path)
            return pwrite(descriptor, data, position)

        def sync(descriptor: int) -> None:
            if self.holds(path := _path_of(descriptor)):
                self.use(FSYNC, path)
            fsync(descriptor)

        def naming(kind: str, do: Any) -> Any:
            def name(source: Any, target: Any, **named: Any) -> None:
                if self.holds(target):
                    self.use(kind, source, target)
                do(source, target, **named)

            return name

        builtins.open = io.open = open_file  # type: ignore[assignment]
        os.open, os.pwrite, os.fsync = open_descriptor, write_at, sync  # type: ignore[assignment]
        os.replace, os.rename, os.link = naming(RENAME, os.replace), naming(RENAME, os.rename), naming(LINK, os.link)


def operations(trace: Path, below: Path) -> list[tuple[str, str]]:
    """Read a trace: kinds and relative paths of operations; for a file that is renamed later on its last name."""
    found: list[tuple[str, str]] = []
    for line in trace.read_text().splitlines():
        kind, *paths = line.split("\t")
        if kind == RENAME:
            found = [(done, paths[1] if path == paths[0] else path) for done, path in found]
        found.append((kind, paths[-1]))
    return [(kind, os.path.relpath(path, below)) for kind, path in found]


class _File(io.FileIO):
    def __init__(self, file: Any, mode: str, path: Any, disk: FullDisk) -> None:
        super().__init__(file, mode)
        self._path, self._disk = path, disk
        self._cut = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        end = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        if end + size <= os.fstat(self.fileno()).st_size or self._cut or not self._disk.is_full(WRITE, self._path):
            if not self._cut:
                return super().write(data)
        elif size > 1:
            self._cut = True  # which whoever writes notices at the next attempt, as with the system's write
            return super().write(memoryview(data).cast("B")[: size // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


if __name__ == "__main__":
    folder, number, trace, module, *arguments = sys.argv[1:]
    FullDisk(Path(folder), int(number), Path(trace)).install()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
