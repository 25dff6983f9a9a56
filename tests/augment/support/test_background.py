"""Background work: waiting for results, order, repetition, and failures."""

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from augment.support import background
from augment.support.background import Background, CallQueue, Refresher, in_threads


def fail() -> None:
    raise OSError("no such image")


def test_several_calls_run_at_once_and_return_in_order() -> None:
    both = threading.Barrier(2, timeout=10)

    def work(item: int) -> int:
        if item < 2:
            both.wait()
        return 10 * item

    with in_threads(work, range(4), 2) as results:
        assert list(results) == [0, 10, 20, 30]


def test_whoever_leaves_early_waits_for_what_has_begun_and_for_no_more() -> None:
    begun, proceed, ended = threading.Event(), threading.Event(), []

    def work(item: int) -> None:
        begun.set()
        assert proceed.wait(10)
        ended.append(item)

    with in_threads(work, range(50), 1):
        assert begun.wait(10)
        threading.Timer(0.05, proceed.set).start()
    assert ended == [0]


def test_ctrl_c_ends_waiting_but_not_the_work() -> None:
    proceed = threading.Event()
    background = Background(lambda: proceed.wait(10))

    def wait() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        background.result()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not background.done
    proceed.set()
    assert background.result()


def test_ctrl_c_while_a_thread_starts_does_not_keep_the_process_alive() -> None:
    code = """
import threading
from augment.support.background import Background

start = threading.Thread.start

def interrupted(thread):
    start(thread)
    raise KeyboardInterrupt

threading.Thread.start = interrupted
Background(print)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr.endswith("KeyboardInterrupt\n")


def test_a_failure_of_dropped_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Background(fail).drop()
    assert "no such image" in caplog.text


def test_repeated_work_never_runs_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(background, "_MAX_SHARE", 1e9)
    begun, proceed = threading.Event(), threading.Event()
    refresher = Refresher("page")
    assert refresher.due

    def work() -> None:
        begun.set()
        proceed.wait(10)

    refresher.start(work)
    assert begun.wait(10)
    assert not refresher.due
    proceed.set()
    refresher.finish()
    assert refresher.due


def test_repeated_work_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(background, "monotonic", lambda: clock[0])
    monkeypatch.setattr(background, "thread_time", iter([0.0, 0.5] * 3).__next__)  # half a second of one core
    refresher = Refresher("page")
    due = {}
    for clock[0] in (9.0, 10.0, 19.0, 20.0, 69.0, 70.0):
        if due.setdefault(clock[0], refresher.due):
            refresher.start(lambda: None)
            refresher.finish()
    assert [now for now, is_due in due.items() if is_due] == [10.0, 69.0]


def test_a_failure_of_repeated_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    refresher = Refresher("page.html")
    with caplog.at_level(logging.WARNING):
        refresher.start(fail)
        refresher.finish()
    assert [record.getMessage() for record in caplog.records] == ["page.html was not refreshed: no such image"]


def test_a_worker_keeps_the_order_and_ends_with_the_first_error() -> None:
    done: list[object] = []
    worker = CallQueue(done.append)
    error = OSError("no such image")

    def work() -> None:
        raise error

    worker.add(lambda: done.append("first"))
    worker.add(work)
    worker.add(lambda: done.append("never"))
    assert worker.close(work, 10)
    assert done == ["first", error]
