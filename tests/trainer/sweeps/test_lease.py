"""Leases: one holder at a time, whatever happens to it."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer.sweeps.lease import EXPIRES, LOST, claim, holder_of

ROOT = Path(__file__).parents[3]


def python(code: str, folder: Path) -> subprocess.Popen[str]:
    start = "import sys, time\nfrom pathlib import Path\nfrom trainer.sweeps import lease\nfolder = Path(sys.argv[1])\n"
    return subprocess.Popen(
        [sys.executable, "-c", start + code, folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_of_many_only_one_gets_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        leases = list(pool.map(lambda _: claim(tmp_path), range(40)))
    (lease,) = filter(None, leases)
    assert str(holder_of(tmp_path)).startswith(f"process {os.getpid()} on ")
    lease.release()
    assert holder_of(tmp_path) is None
    again = claim(tmp_path)
    assert again is not None
    assert again.attempts == 1


def test_that_of_a_killed_process_is_void_at_once(tmp_path: Path) -> None:
    process = python("lease.claim(folder)\nprint('claimed', flush=True)\ntime.sleep(100)", tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    assert claim(tmp_path) is None
    assert str(holder_of(tmp_path)).startswith(f"process {process.pid} on ")
    process.kill()
    process.wait()
    lease = claim(tmp_path)
    assert lease is not None
    assert lease.attempts == 2
    process.communicate()


def test_attempts_count_only_without_progress(tmp_path: Path) -> None:
    for number, progress in enumerate([0, 0, 7, 7, 7], start=1):
        holder = {"process": 1, "began": -1, "host": "", "name": "gone"}
        (tmp_path / f".lease.{number}").write_text(json.dumps({"holder": holder, "progress": progress}))
        os.utime(tmp_path / f".lease.{number}", (1, 1))
    lease = claim(tmp_path, progress=7)
    assert lease is not None
    assert lease.attempts == 4
    lease.release()
    other = claim(tmp_path, progress=9)
    assert other is not None
    assert other.attempts == 1


@pytest.mark.parametrize("age", [EXPIRES + 5, -3600])
def test_that_of_another_host_is_waited_for_until_it_expires(tmp_path: Path, age: float) -> None:
    """One from the future is void: after a restart, which makes another host of it, the clock may be set back."""
    holder = {"process": os.getpid(), "began": 0, "host": "another", "name": "far"}
    file = tmp_path / ".lease.1"
    file.write_text(json.dumps({"holder": holder, "progress": 0}))
    assert claim(tmp_path) is None
    assert str(holder_of(tmp_path)) == f"process {os.getpid()} on far"
    os.utime(file, (time.time() - age,) * 2)
    assert holder_of(tmp_path) is None
    assert claim(tmp_path) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"holder": {"pid": 3}, "progress": 0}'])
def test_a_damaged_one_is_void(tmp_path: Path, text: str) -> None:
    (tmp_path / ".lease.1").write_text(text)
    assert claim(tmp_path) is not None


@pytest.mark.parametrize("taken", [True, False])
def test_a_process_that_was_away_writes_only_what_is_still_its_own(tmp_path: Path, taken: bool) -> None:
    """It was suspended: another process took its job meanwhile, or none did."""
    code = f"""
from augment.support.files import write_atomically
with lease.claim(folder).held():
    write_atomically(folder / "before", "")
    clock = lease._clock
    lease._clock = lambda: clock() + lease.EXPIRES
    if {taken}:
        lease._create(folder / ".lease.2", 0)
    write_atomically(folder / "after", "")
    write_atomically(folder / "later", "")
"""
    process = python(code, tmp_path)
    _, errors = process.communicate(timeout=60)
    names = {file.name for file in tmp_path.iterdir() if not file.name.startswith(".")}
    assert (tmp_path / ".lease.2").exists()
    if taken:
        assert process.returncode == LOST
        assert names == {"before"}
        assert "took over the job" in errors
    else:
        assert (process.returncode, errors) == (0, "")
        assert names == {"before", "after", "later"}


def test_it_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.sweeps.lease.RENEWED", 0.01)
    lease = claim(tmp_path)
    assert lease is not None
    file = tmp_path / ".lease.1"
    os.utime(file, (1, 1))
    with lease.held():
        for _ in range(1000):
            if file.stat().st_mtime > 1:
                break
            time.sleep(0.01)
        else:
            pytest.fail("it is not renewed")
    assert file.read_text() == ""
