"""The ledger: jobs by their configurations, and what became of them."""

import errno
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from augment.support.errors import UserError
from trainer.run.config import Config, parse_config
from trainer.run.summary import Summary
from trainer.sweeps.ledger import job_id, plan_jobs, read_ledger, unfinished


def config(**sections: Any) -> Config:
    given = {"data": {"source": "sample"}, "model": {"kind": "cnn"}, "aug": None, "fit": {}, "callbacks": {}}
    return parse_config(given | sections)


def test_a_job_is_told_by_what_changes_its_result() -> None:
    base = job_id(config())
    assert len(base) == 10
    same = [
        config(fit={"resume": "somewhere"}),
        config(run={"name": "mine", "tags": ["a"]}),
        config(callbacks={"wandb": {}}),
        config(seed=0),
    ]
    assert {job_id(one) for one in same} == {base}
    others = [
        config(seed=1),
        config(fit={"lr": 0.5}),
        config(callbacks={"ema": {}}),
        config(data={"source": "folder", "root": "a"}),
        config(data={"source": "folder", "root": "b"}),
        config(aug={"train": {"flip": {}, "rotate": {}}}),
        config(aug={"train": {"rotate": {}, "flip": {}}}),
    ]
    assert len({base, *map(job_id, others)}) == len(others) + 1


def test_planning_again_extends_a_sweep(tmp_path: Path) -> None:
    one, two, three = config(), config(seed=1), config(seed=2)
    first = plan_jobs(tmp_path, [(one, ["a=1", "seed=0"]), (two, ["a=1", "seed=1"])], ["a=1"])
    assert [(job.order, job.varied) for job in first] == [(0, ("seed=0",)), (1, ("seed=1",))]
    more = plan_jobs(tmp_path, [(three, ["a=1", "seed=2"]), (two, ["a=1", "seed=1"]), (three, [])], ["a=1"])
    assert [(job.id, job.order) for job in more] == [(job_id(three), 2), (job_id(two), 1)]
    assert read_ledger(tmp_path) == [*first, more[0]]


def test_the_command_decides_what_a_job_is(tmp_path: Path) -> None:
    """Whoever can write to the folder must not choose the overrides that a trusted command runs."""
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    file = job.folder / "job.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"overrides": ["plugins=[evil]"]}))
    assert plan_jobs(tmp_path, [(config(), ["seed=0"])]) == [job] == read_ledger(tmp_path)


def test_statuses(tmp_path: Path) -> None:
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    assert job.status() == "planned"
    with job.claimed() as mine:
        assert (mine, job.status()) == (True, "running")
        with job.claimed() as again:
            assert not again
        (job.folder / "summary.json").write_text('{"status": "running"}')
    assert job.status() == "killed"
    for status, stopped in (("finished", ""), ("failed", ""), ("interrupted", ""), ("pruned", "pruned after 2 epochs")):
        written = "finished" if status == "pruned" else status
        Summary(written, job.folder, 2, {}, {}, 1.0, stopped=stopped).write()
        assert job.status() == status
        assert unfinished([job]) == ([job] if status == "interrupted" else [])


def test_without_locks_a_second_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    for _ in range(2):  # the first one has released it
        with job.claimed() as mine:
            assert mine
    (job.folder / ".lock").write_text("process 17 on another-host\n")
    with (
        pytest.raises(UserError, match=r"no locks \(No locks available\), and process 17 on another-host works here\."),
        job.claimed(),
    ):
        raise AssertionError


def test_only_a_failed_job_is_retried(tmp_path: Path) -> None:
    (job,) = plan_jobs(tmp_path, [(config(), ["seed=0"])])
    job.retry()
    assert job.status() == "planned"
    for status, then in (("finished", "finished"), ("failed", "interrupted")):
        Summary(status, job.folder, 2, {}, {}, 1.0, "why").write()
        job.retry()
        assert job.status() == then


@pytest.mark.parametrize("text", ["", "[]", '{"order": 1}', '{"order": "x", "overrides": []}'])
def test_a_damaged_job_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "job.json").write_text(text)
    with pytest.raises(UserError, match=r"one/job\.json: not a job of a sweep"):
        read_ledger(tmp_path)
