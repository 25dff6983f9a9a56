"""Notices during loading are shown, and are in the log of every run that uses the data."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from threading import Event, Thread

import pytest

from augment.data.sources.notices import recorded_notices, replay_notices
from trainer.cli.main import main
from trainer.report.page import render
from trainer.report.record import read_record

logger = logging.getLogger("augment.somewhere")


def test_recorded_notices_are_still_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), recorded_notices() as notes:
        logger.debug("no")
        logger.info("quiet")
        logger.warning("loud")
    assert [note.getMessage() for note in notes] == ["quiet", "loud"]
    assert caplog.messages == ["loud"]
    logger.warning("after")
    assert caplog.messages == ["loud", "after"]
    caplog.clear()
    replay_notices(notes, before=notes[1].created)
    assert caplog.messages == ["quiet"]
    assert len(notes) == 2


CODE = """
    import numpy as np

    class Images:
        def __init__(self, count=4):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            return np.full((8, 8, 3), 60 * index, np.uint8), "ab"[index % 2]
"""


@pytest.fixture
def _my_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_images.py").write_text(dedent(CODE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_images", None)


@pytest.mark.slow
@pytest.mark.usefixtures("_my_images")
def test_every_job_of_a_sweep_has_them_once_in_its_log_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["data=own", "data.train=my_images.Images", "data.val=my_images.Images", "data.val_options.count=1"]
    small = ["aug.size=16", "fit.epochs=1", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1"]
    small += ["callbacks.plots=null", "model=xresnet", "model.depth=18", "model.width=0.1"]
    assert main([*own, *small, "-m", "seed=0,1"]) == 0
    jobs = sorted(tmp_path.glob("outputs/*/*-sweep/*/report.html"))
    assert len(jobs) == 2
    missing = "1 of 2 classes has no image in val: b."
    for job in (report.parent for report in jobs):
        log = (job / "trainer.log").read_text()
        assert log.count("all 4 items are read once, to determine them") == 1
        assert log.count(missing) == 1
        assert missing in (job / "report.html").read_text()
    assert "Traceback" not in capsys.readouterr().err
    assert missing in render(read_record(jobs[1].parent, trust=True))


def test_threads_record_one_after_the_other() -> None:
    package = logging.getLogger("augment")
    before, entered, leave = package.propagate, Event(), Event()

    def record() -> None:
        with recorded_notices():
            entered.set()
            leave.wait(10)

    other = Thread(target=record)
    with recorded_notices():
        other.start()
        assert not entered.wait(0.1)
    leave.set()
    other.join()
    assert package.propagate == before
