"""A run that loses an image ends in a sentence, and continues once the image is back."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from files_of_sources import drawn, put
from runs import read_metrics

from trainer.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_plugin")]

PLUGIN = """
    from dataclasses import dataclass
    from pathlib import Path

    from trainer.loop.callback import Callback
    from trainer.callbacks.registry import configurable

    @configurable
    @dataclass(eq=False)
    class LoseImage(Callback):
        '''Takes an image away after two epochs.'''

        def after_epoch(self, learner):
            if learner.epoch == 1:
                Path("set/train/class 1/1.jpg").rename("away.jpg")
"""


@pytest.fixture
def _plugin(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from trainer.callbacks.registry import _CALLBACKS, known_callbacks

    (own_folder / "lose_image.py").write_text(dedent(PLUGIN))
    monkeypatch.syspath_prepend(".")
    known = dict(known_callbacks())
    yield
    _CALLBACKS.clear()
    _CALLBACKS.update(known)
    sys.modules.pop("lose_image", None)


def test_a_run_ends_in_a_sentence_and_continues_from_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    put("folder", "train", drawn(6))
    put("folder", "val", drawn(3))
    given = [
        "data=folder",
        f"data.root={Path('set').resolve()}",
        "plugins=[lose_image]",
        "+callbacks.lose_image={}",
        "fit.epochs=6",
    ]
    given += ["aug.size=64", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1", "callbacks.plots=null"]
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    (folder,) = Path("outputs").glob("2*/*")
    errors = [line for line in capsys.readouterr().err.splitlines() if "[ERROR]" not in line]  # that are DALI's own
    image = Path("set/train/class 1/1.jpg").resolve()
    expected = f"data: an image turned out bad: {image} cannot be read: No such file"
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {expected}")
    assert errors[0].endswith(f"fit.resume={folder} continues from its last checkpoint.")
    log = (folder / "trainer.log").read_text()
    assert expected in log
    assert "Traceback" not in log
    # Some batches were read ahead.
    page = (folder / "report.html").read_text()
    assert re.search(rf"The run failed after [2-4] of 6 epochs: {re.escape(expected)}", page)
    assert json.loads((folder / "summary.json").read_text())["epochs"] == len(read_metrics(folder)) >= 2
    shutil.move("away.jpg", image)
    assert main([f"fit.resume={folder}", "plugins=[lose_image]"]) == 0
    resumed = max(Path("outputs").glob("2*/*/metrics.jsonl"), key=lambda file: file.stat().st_mtime).parent
    assert [row["epoch"] for row in read_metrics(resumed)] == list(range(6))
