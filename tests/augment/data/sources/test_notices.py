"""Notices during loading are shown, and are in the log of every run that uses the data."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from trainer.cli.main import main
from trainer.report.page import render
from trainer.report.run_content import read_record

CODE = """
    import numpy as np

    def images(count=4):
        return [(np.full((8, 8, 3), 60 * index, np.uint8), "ab"[index % 2]) for index in range(count)]
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
    own = ["data=own", "data.train=my_images.images", "data.val=my_images.images", "data.val_options.count=1"]
    small = ["aug.size=16", "fit.epochs=1", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1"]
    small += ["callbacks.plots=null"]
    assert main([*own, *small, "-m", "seed=0,1"]) == 0
    jobs = sorted(tmp_path.glob("outputs/*/*-sweep/*/report.html"))
    assert len(jobs) == 2
    missing = "1 of 2 classes has no image in val: b."
    for job in (report.parent for report in jobs):
        log = (job / "trainer.log").read_text()
        assert log.count(missing) == 1
        assert missing in (job / "report.html").read_text()
    assert "Traceback" not in capsys.readouterr().err
    assert missing in render(read_record(jobs[1].parent))
