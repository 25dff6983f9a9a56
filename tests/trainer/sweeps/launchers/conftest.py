"""What tests of launchers share."""

import json
from pathlib import Path

import pytest
from workers import command

from trainer.run.run_folder import JOB_FILE
from trainer.sweeps.ledger import Job, read_ledger
from trainer.sweeps.work import Command


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    for order in range(4):
        folder = tmp_path / f"000000000{order}"
        folder.mkdir()
        (folder / JOB_FILE).write_text(json.dumps({"order": order, "overrides": [f"seed={order}"]}))
    monkeypatch.setattr(Command, "of", staticmethod(command))
    return read_ledger(tmp_path)
