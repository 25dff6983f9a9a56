"""A new callback, and a new experiment tracker, are one module each; nothing else changes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import BARE

from augment import UserError
from trainer import train
from trainer.callbacks import registry
from trainer.callbacks.registry import known_callbacks

ROOT = Path(__file__).parents[3]
SMALL = ["aug.size=16", "fit.device=cpu", "fit.threads=1", "fit.batch_size=32", "fit.limit_batches=2"]

STOP_EARLY = '''
from dataclasses import dataclass

from augment import Count, setting
from trainer import Callback, CancelFit, configurable


@configurable
@dataclass(eq=False)
class StopAfter(Callback):
    """Ends the fit after some epochs."""

    order = 100  # last: whoever comes after has no after_epoch where the fit ends
    epochs: int = setting(Count(default=3, within=(1, 1000), doc="epochs that the fit has"))

    def after_epoch(self, learner):
        if learner.epoch + 1 >= self.epochs:
            raise CancelFit
'''

TRACKER = '''
import json
from dataclasses import dataclass

from augment import Text, setting
from trainer import Callback, Recorder, configurable


@configurable
@dataclass(eq=False)
class JsonTracker(Callback):
    """Sends what a dashboard would be sent to a file."""

    file: str = setting(Text(default="tracked.json", doc="file in the run's folder"))
    order = 70  # after the recorder

    def before_fit(self, learner):
        self.sent = {"config": learner.run.config, "group": learner.run.group, "name": learner.folder.name, "rows": []}

    def after_epoch(self, learner):
        self.sent["rows"].append(dict(learner.find(Recorder).rows[-1]))

    def after_fit(self, learner):
        (learner.folder / self.file).write_text(json.dumps(self.sent))
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of plugins, which is the current one; what they register is forgotten after the test."""
    before = dict(known_callbacks())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    registry._CALLBACKS.clear()
    registry._CALLBACKS.update(before)


@pytest.mark.slow
@pytest.mark.usefixtures("sample_drawn")
def test_a_new_callback_and_a_new_tracker_are_configured_like_any_other(plugin: Path) -> None:
    (plugin / "stop_after_of_a_test.py").write_text(STOP_EARLY)
    (plugin / "tracker_of_a_test.py").write_text(TRACKER)
    plugins = "plugins=[stop_after_of_a_test,tracker_of_a_test]"
    with pytest.raises(UserError, match=r"^callbacks\.stop_after\.epoch: unknown key\. Did you mean 'epochs'\?"):
        train(plugins, "callbacks.stop_after.epoch=1")
    given = [
        plugins,
        "callbacks.stop_after.epochs=1",
        "callbacks.json_tracker.file=sent.json",
        "fit.epochs=2",
        "seed=3",
    ]
    summary = train(*given, *SMALL, *BARE)
    assert (summary.status, summary.epochs) == ("finished", 1)
    sent = json.loads((summary.folder / "sent.json").read_text())
    assert (sent["config"]["seed"], sent["config"]["fit"]["epochs"], sent["group"]) == (3, 2, None)
    assert (sent["name"], [row["epoch"] for row in sent["rows"]]) == (summary.folder.name, [0])


@pytest.mark.long
def test_a_module_in_the_room_is_found_without_a_list(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "trainer", tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("augment", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "trainer" / "callbacks" / "stop_after.py").write_text(STOP_EARLY)
    code = "from trainer.callbacks.registry import known_callbacks; print(*known_callbacks())"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert {"stop_after", "grad_clip", "report"} <= set(done.stdout.split()), done.stderr
