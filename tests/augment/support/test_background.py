"""Background work: waiting for results, and failures."""

import logging
import threading

import pytest

from augment.support.background import Background


def fail() -> None:
    raise OSError("no such image")


def test_it_runs_in_another_thread_that_ends_with_the_work() -> None:
    thread = Background(threading.current_thread).result()
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_it_starts_before_the_result_is_requested() -> None:
    begun, proceed = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return proceed.wait(10)

    background = Background(work)
    assert begun.wait(10)
    proceed.set()
    assert background.result()


def test_a_failure_is_raised_by_result() -> None:
    with pytest.raises(OSError, match="no such image"):
        Background(fail).result()


def test_a_failure_of_dropped_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Background(fail).drop()
    assert "no such image" in caplog.text
