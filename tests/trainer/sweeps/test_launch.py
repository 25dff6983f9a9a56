"""Launchers: real processes, submitit's local executor and a local Ray, around workers that train nothing."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import FakeRuns

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.run.config import parse_config
from trainer.sweeps.launch import LAUNCHERS, Local, parse_launcher
from trainer.sweeps.ledger import Job, unfinished
from trainer.sweeps.processes import Command

# A worker that claims jobs as ours do, and writes down where it ran each.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
from trainer.sweeps.lease import claim
for folder in map(Path, sys.argv[1:]):
    lease = None if (folder / "summary.json").exists() else claim(folder)
    if lease is None:
        continue
    if (folder / "die").exists():
        (folder / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    summary = {"status": "finished", "last": {}, "best": {}, "seconds": 1.0, "error": "", "epochs": 1}
    (folder / "where.json").write_text(json.dumps([os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")]))
    time.sleep(0.2)
    (folder / "summary.part").write_text(json.dumps(summary))
    (folder / "summary.part").rename(folder / "summary.json")
    lease.release()
while not all((Path(folder) / "summary.json").exists() for folder in sys.argv[1:]):
    time.sleep(0.1)
    if any((Path(folder) / "die").exists() for folder in sys.argv[1:]):
        sys.exit(1)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    found = []
    for order in range(4):
        folder = tmp_path / f"000000000{order}"
        folder.mkdir()
        found.append(Job(folder, order, (f"seed={order}",)))
    folders = tuple(str(job.folder) for job in found)
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}

    def command(jobs: object, worker: object) -> Command:
        return Command((sys.executable, "-c", WORKER, *folders), environment, str(tmp_path))

    monkeypatch.setattr(Command, "of", staticmethod(command))
    return found


def where(jobs: list[Job]) -> list[list[Any]]:
    return [json.loads((job.folder / "where.json").read_text()) for job in jobs]


def test_two_jobs_at_a_time_take_turns_on_gpus(jobs: list[Job], tmp_path: Path) -> None:
    Local(n_jobs=2, gpus="3,5").run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    ran = where(jobs)
    assert len({process for process, _ in ran}) == 2
    assert len({(process, gpu) for process, gpu in ran}) == 2
    assert {gpu for _, gpu in ran} == {"3", "5"}
    assert {file.name for file in tmp_path.glob("worker-*.log")} == {"worker-0.log", "worker-1.log"}


def test_a_worker_that_is_killed_is_replaced_and_its_job_resumed(jobs: list[Job]) -> None:
    (jobs[1].folder / "die").touch()
    Local(n_jobs=2).run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert sorted(file.name for file in jobs[1].folder.glob(".lease.*")) == [".lease.1", ".lease.2"]


def test_workers_that_always_die_end_the_sweep(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Command, "of", staticmethod(lambda jobs, worker: Command(("false",), {}, ".")))
    monkeypatch.chdir(jobs[0].folder)
    with pytest.raises(UserError, match=r"worker-\d\.log: the worker processes keep dying"):
        Local(n_jobs=2).run(jobs, FakeRuns().worker())


def test_a_worker_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Otherwise Ctrl-C would reach it twice, and the second signal ends it at once."""
    code = "import os; print(os.getsid(0) == os.getpid())"
    command = Command((sys.executable, "-c", code), {}, str(tmp_path), log=str(tmp_path / "log"))
    assert command.start().wait() == 0
    assert (tmp_path / "log").read_text() == "True\n"


def test_a_signal_asks_the_workers_to_stop(jobs: list[Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path(f"asked-{os.getpid()}").touch(), sys.exit(130)))
Path(f"began-{os.getpid()}").touch()
time.sleep(100)
"""
    command = Command((sys.executable, "-c", code), {}, str(tmp_path))
    monkeypatch.setattr(Command, "of", staticmethod(lambda jobs, worker: command))
    worker = FakeRuns().worker()

    def looks(message: str = "") -> None:
        if len(list(tmp_path.glob("began-*"))) == 2:
            raise KeyboardInterrupt(message)

    monkeypatch.setattr(worker.signals, "check", looks)
    with pytest.raises(KeyboardInterrupt, match="no further job"):
        Local(n_jobs=2).run(jobs, worker)
    began = {file.name.removeprefix("began-") for file in tmp_path.glob("began-*")}
    assert began == {file.name.removeprefix("asked-") for file in tmp_path.glob("asked-*")}


@pytest.mark.long
def test_submitit_runs_workers_on_this_machine(jobs: list[Job], tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    launcher = parse_launcher({"kind": "slurm", "cluster": "local", "n_jobs": 2, "options": {"timeout_min": 5}})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert list((tmp_path / "submitit").iterdir())


def test_before_slurm_queues_a_worker_again_its_job_is_saved(tmp_path: Path) -> None:
    """As submitit does on preemption and at the time limit: `checkpoint` in a signal handler of the job."""
    submitit = pytest.importorskip("submitit")
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\nprint('ready')\n"
    code += "from pathlib import Path\nPath('ready').touch()\nsignal.pause()"
    command = Command((sys.executable, "-c", code), {}, str(tmp_path), log=str(tmp_path / "log"))
    handed: list[Any] = []

    def on_preemption(*_: object) -> None:
        if (tmp_path / "ready").exists():
            handed.append(command.checkpoint())
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    before = signal.signal(signal.SIGALRM, on_preemption)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert command() == 130
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [type(one) for one in handed] == [submitit.helpers.DelayedSubmission]


@pytest.mark.long
def test_ray_runs_workers_on_this_machine(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    launcher = parse_launcher({"kind": "ray", "n_jobs": 2, "cpus_per_job": 0.5})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert len({process for process, _ in where(jobs)}) <= 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "locl"}, "hydra/launcher: 'locl' cannot run the jobs of a sweep. Did you mean 'local'?"),
        ({"_target_": "hydra_plugins.joblib"}, "hydra/launcher: 'plugin' cannot run the jobs of a sweep."),
        ({"kind": "local", "n_job": 2}, "hydra.launcher.n_job: unknown key. Did you mean 'n_jobs'?"),
        ({"kind": "local", "n_jobs": 0}, "hydra.launcher.n_jobs: 0 is not allowed."),
        ({"kind": "slurm", "cluster": "slrm"}, "hydra.launcher"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str, jobs: list[Job]) -> None:
    with pytest.raises(UserError) as refused:
        parse_launcher(given).run(jobs, FakeRuns().worker())
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("gpus", ["0,1", [0, 1], 0, None])
def test_gpus_can_be_given_in_any_way(gpus: object) -> None:
    launcher = parse_launcher({"kind": "local", "gpus": gpus})
    assert launcher.at_a_time == {None: 1, 0: 1}.get(gpus if not isinstance(gpus, list) else "many", 2)  # type: ignore[call-overload]


@pytest.mark.parametrize(("device", "gpus"), [("cuda:1", "0,1"), ("cuda:1", None), ("cuda", "0,1"), ("cuda:0", 3)])
def test_a_job_that_sees_one_gpu_does_not_name_another(device: str, gpus: object) -> None:
    launcher = parse_launcher({"kind": "local", "gpus": gpus})
    configs = [parse_config(compose(["fit.device=cpu"])), parse_config(compose([f"fit.device={device}"]))]
    if device == "cuda:1" and gpus:
        with pytest.raises(UserError, match=r"^fit\.device=cuda:1: .* Allowed: fit\.device=cuda, or no hydra"):
            launcher.check(configs)
    else:
        launcher.check(configs)


def test_a_missing_extra_is_named(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("slurm", "submitit"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            UserError, match=rf"needs the package {module}\. Allowed: pip install 'dali-trainer\[{name}\]'"
        ):
            LAUNCHERS[name]().run(jobs, FakeRuns().worker())
