"""Signals that ask to stop: raised, held, ignored, and whose handlers there are afterwards."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from augment.support.signals import STOP_SIGNALS, StopSignals

WITH_US = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Python's own handlers, which a process started in the background may lack; what was there comes back."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_raises_and_its_handler_is_restored(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
        send(number)
    assert signals.asked
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_held_signal_is_noted_and_the_next_one_raises(number: int) -> None:
    with StopSignals() as signals:
        signals.hold()
        assert not signals.asked
        send(number)
        assert signals.asked
        with pytest.raises(KeyboardInterrupt, match="again"):
            signals.check("again")
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_the_second_hangup_of_a_closed_terminal_is_no_second_request() -> None:
    with StopSignals() as signals:
        signals.hold()
        for _ in range(3):
            send(signal.SIGHUP)
        assert signals.asked


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert not signals.asked


IMPORTING = """
import signal, sys

class Finder:
    def find_spec(name, path, target=None):
        if name == "hydra":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder)
from PACKAGE.__main__ import main
main()
"""


@pytest.mark.parametrize("package", ["augment", "trainer"])
def test_ctrl_c_while_modules_are_imported_exits_at_once(package: str) -> None:
    code = IMPORTING.replace("PACKAGE", package)
    done = subprocess.run([sys.executable, "-c", code], env=WITH_US, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


PRINTER = """
import fcntl, termios, time
from augment.support.signals import StopSignals
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal is this session's
with StopSignals() as signals:
    signals.hold()
    print("ready", flush=True)
    while not signals.asked:
        time.sleep(0.01)
    print("farewell", flush=True)
    raise SystemExit(7)
"""


def test_a_program_whose_terminal_closes_ends_in_peace() -> None:
    """Printing to a closed terminal would be an OSError."""
    terminal, end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTER], stdin=end, stdout=end, stderr=end, env=WITH_US, start_new_session=True
    )
    os.close(end)
    assert os.read(terminal, 100).startswith(b"ready")
    os.close(terminal)
    assert process.wait(60) == 7


POOL = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from augment.support.signals import StopSignals, ignore_in_worker, shield_children
if __name__ == "__main__":
    with StopSignals() as signals:
        signals.hold()
        pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=ignore_in_worker)
        with shield_children():
            first = pool.submit(time.sleep, 0.3)
        print("ready", flush=True)
        first.result()
        print(pool.submit(os.getppid).result() == os.getpid(), signals.asked)
        for process in list(pool._processes.values()):
            process.terminate()
            process.join(20)
            while process.exitcode is None:  # the pool, which waits as well, has learned it and not yet written it down
                time.sleep(0.01)
            print(process.exitcode, flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_workers_outlive_what_a_process_group_gets_but_not_their_parents_order(number: int, tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    process = subprocess.Popen(
        [sys.executable, "pool.py"],
        cwd=tmp_path,
        env=WITH_US,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)
    assert process.communicate(timeout=60)[0].split() == ["True", "True", "1"]


def test_a_signal_while_python_ends_leaves_the_exit_code() -> None:
    program = f"""
import atexit, os
from augment.support.signals import exit_on_stop, ignore_stop_signals
atexit.register(ignore_stop_signals)
exit_on_stop(0)
class Last:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, {int(signal.SIGINT)})
last = Last()
"""
    assert subprocess.run([sys.executable, "-c", program], env=WITH_US).returncode == 0


def test_a_signal_that_reaches_a_rank_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with StopSignals() as signals:
        signals.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.asked
        signals._last -= 60
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
