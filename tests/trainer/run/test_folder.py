"""The folder of a run belongs to one run, and to one process at a time."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from augment.support.errors import UserError
from trainer.run.folder.locks import LOCK_FILE, owned, release, reserve, user_of


@pytest.fixture(autouse=True)
def nothing_stays_locked() -> Iterator[None]:
    yield
    release()


def test_a_folder_is_locked_until_its_run_has_ended_or_releases_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with owned(folder):
        assert user_of(folder) == f"process {os.getpid()} on {os.uname().nodename}"
        with pytest.raises(UserError, match=rf"^folder={folder}: a run is writing to .* \(process {os.getpid()} on "):
            reserve(folder)
    assert user_of(folder) is None
    for _ in range(2):  # the second time by the same process: nothing new
        reserve(folder)
        assert user_of(folder)
    with owned(folder):
        pass
    assert user_of(folder) is None
    reserve(folder)
    release()
    assert user_of(folder) is None


def test_a_process_that_looks_at_a_lock_keeps_no_run_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("trainer.run.folder.locks.sleep", lambda _: os.close(looking))
    with owned(tmp_path):
        assert user_of(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/run: cannot write to this folder: Not a directory\. Choose "):
        reserve(tmp_path / "file" / "run")


@pytest.mark.slow
def test_a_killed_process_leaves_no_lock_though_its_worker_lives(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from trainer.run.folder.locks import reserve
reserve(Path(sys.argv[1]))
worker = os.fork()
os.write(1, f"{worker}\\n".encode())
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = max(int(process.stdout.readline()) for _ in range(2))  # both write; 0 is the worker's own line
    try:
        assert user_of(tmp_path) == f"process {process.pid} on {os.uname().nodename}"
        process.kill()
        process.wait()
        os.kill(worker, 0)
        assert user_of(tmp_path) is None
    finally:
        os.kill(worker, 9)
        process.stdout.close()
    assert (tmp_path / LOCK_FILE).is_file()
