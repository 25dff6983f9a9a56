"""Stand-ins for training, so that sweeps and searches can be tried without it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from augment.support.signals import StopSignals
from trainer.loop.callback import Callback
from trainer.run.config.schema import Config, config_text
from trainer.run.folder.summary import Summary
from trainer.sweeps.workers import Worker


class FakeRuns:
    """Runs that end at once.

    Attributes:
        score: returns the last val_accuracy of a configuration.
        stopped: returns why the run of a configuration ended early.
        fail: returns what the run of a configuration raises; None: nothing.
        seconds: returns how long the run of a configuration takes.
        runs: for each run: its folder's name, and whether it was resumed.
    """

    def __init__(self) -> None:
        self.score: Callable[[Mapping[str, Any]], float] = lambda config: 0.5
        self.runs: list[tuple[str, bool]] = []
        self.stopped: Callable[[Mapping[str, Any]], str] = lambda config: ""
        self.seconds: Callable[[Mapping[str, Any]], float] = lambda config: 1.0
        self.fail: Callable[[Mapping[str, Any]], BaseException | None] = lambda config: None

    def __call__(
        self,
        config: Config,
        overrides: Sequence[str],
        folder: Path,
        *,
        again: bool,
        callbacks: Sequence[Callback] = (),
        **_: Any,
    ) -> Summary:
        self.runs.append((folder.name, not again))
        if error := self.fail(config.resolved):
            raise error
        row = {"epoch": 0.0, "val_accuracy": self.score(config.resolved)}
        resolved = config.resolved
        summary = Summary("finished", folder, 1, row, row, self.seconds(resolved), stopped=self.stopped(resolved))
        (folder / "config.yaml").write_text(config_text(config))
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        summary.write()
        return summary

    def worker(self) -> Worker:
        """Return a worker that prints nothing."""
        return Worker(Console(quiet=True), StopSignals())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """Let workers of this process run these, without trying their data and their model."""
    for check in ("check_config", "check_resume"):
        monkeypatch.setattr(f"trainer.run.config.checks.{check}", lambda config: None)
    fake = FakeRuns()
    monkeypatch.setattr("trainer.sweeps.workers.run_job", fake)
    return fake
