"""What is said while data are loaded: shown as ever, and in the log of every run that is made of them."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from augment.sources.notes import kept_notes, repeat_notes
from trainer.cli import main
from trainer.report.page import render
from trainer.report.record import read_record

logger = logging.getLogger("augment.somewhere")


def test_what_is_kept_is_shown_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), kept_notes() as notes:
        logger.debug("no")
        logger.info("quiet")
        logger.warning("loud")
    assert [note.getMessage() for note in notes] == ["quiet", "loud"]
    assert caplog.messages == ["loud"]
    logger.warning("after")
    assert caplog.messages == ["loud", "after"]
    caplog.clear()
    repeat_notes(notes, before=notes[1].created)
    assert caplog.messages == ["quiet"]
    assert len(notes) == 2


CODE = """
    import numpy as np

    class Pictures:
        def __init__(self, count=4):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            return np.full((8, 8, 3), 60 * index, np.uint8), "ab"[index % 2]
"""


@pytest.fixture
def _my_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_pictures.py").write_text(dedent(CODE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_pictures", None)


@pytest.mark.slow
@pytest.mark.usefixtures("_my_pictures")
def test_every_job_of_a_sweep_has_them_once_in_its_log_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["data=own", "data.train=my_pictures.Pictures", "data.val=my_pictures.Pictures", "data.val_options.count=1"]
    small = ["aug.size=16", "fit.epochs=1", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1"]
    small += ["callbacks.plots=null", "model=xresnet", "model.depth=18", "model.width=0.1"]
    assert main([*own, *small, "-m", "seed=0,1"]) == 0
    jobs = sorted(tmp_path.glob("outputs/*/*-sweep/[01]"))
    assert len(jobs) == 2
    missing = "1 of 2 classes have no picture in val: b."
    for job in jobs:
        log = (job / "trainer.log").read_text()
        assert log.count("all 4 items are read once, to learn them") == 1
        assert log.count(missing) == 1
        assert missing in (job / "report.html").read_text()
    assert "Traceback" not in capsys.readouterr().err
    assert missing in render(read_record(jobs[1]))
