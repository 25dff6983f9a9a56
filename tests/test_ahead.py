"""Work in the background is waited for, and what goes wrong in it is heard of."""

import logging
import threading

import pytest

from augment.ahead import Ahead


def fail() -> None:
    raise OSError("no such picture")


def test_it_runs_in_another_thread_which_has_ended_with_the_result() -> None:
    thread = Ahead(threading.current_thread).result()
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_it_runs_before_it_is_asked_for() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(10)

    ahead = Ahead(work)
    assert begun.wait(10)
    go_on.set()
    assert ahead.result()


def test_a_failure_is_raised_where_the_result_is_asked_for() -> None:
    with pytest.raises(OSError, match="no such picture"):
        Ahead(fail).result()


def test_a_failure_that_concerns_nobody_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Ahead(fail).drop()
    assert "no such picture" in caplog.text
