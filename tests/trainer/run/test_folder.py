"""The folder of a run belongs to one run, and to one process at a time."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from augment.support.errors import UserError
from trainer.run.config import CONFIG_FILE
from trainer.run.folder import LOCK_FILE, owned, release, reserve, user_of


@pytest.fixture(autouse=True)
def nothing_stays_locked() -> Iterator[None]:
    yield
    release()


def holding(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_FILE).write_text("seed: 0\n")
    return folder


def test_a_folder_is_locked_until_its_run_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with owned(folder):
        assert user_of(folder) == f"process {os.getpid()} on {os.uname().nodename}"
        with pytest.raises(UserError, match=rf"^folder={folder}: a run is writing to it \(process {os.getpid()} on "):
            reserve(folder)
    assert user_of(folder) is None
    reserve(folder)
    assert user_of(folder)


def test_a_reserved_folder_is_taken_over_and_released(tmp_path: Path) -> None:
    reserve(tmp_path)
    reserve(tmp_path)  # by the same process: nothing new
    with owned(tmp_path):
        pass
    assert user_of(tmp_path) is None
    reserve(tmp_path)
    release()
    assert user_of(tmp_path) is None


def test_a_process_that_looks_at_a_lock_keeps_no_run_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("trainer.run.folder.sleep", lambda _: os.close(looking))
    with owned(tmp_path):
        assert user_of(tmp_path)


def test_a_folder_with_a_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = holding(tmp_path)
    with pytest.raises(
        UserError, match=r"^hydra\.run\.dir=.*: holds a run\. Allowed: a folder of its own for each run"
    ):
        reserve(folder, key="hydra.run.dir")
    with pytest.raises(UserError, match="holds a run"):
        reserve(folder, str(tmp_path / "other"))
    assert [file.name for file in folder.iterdir()] == [CONFIG_FILE]


def test_a_run_continues_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = holding(tmp_path / "run")
    with owned(folder, "run"):
        assert user_of(folder)


def test_a_folder_that_cannot_be_made_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/run: cannot be written: Not a directory\. Allowed: "):
        reserve(tmp_path / "file" / "run")


@pytest.mark.slow
def test_a_killed_process_leaves_no_lock_though_its_worker_lives(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from trainer.run.folder import reserve
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
