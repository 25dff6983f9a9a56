"""The launchers: local ones with real processes, around workers that train nothing, and those of clusters."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import FakeRuns
from rank_runs import draw_images, environment, settings_of, state_of
from rich.console import Console
from workers import command, where

from augment.cli.compose import compose
from augment.cli.overrides import normalize
from augment.support.errors import UserError
from augment.support.signals import StopSignals
from trainer.cli.main import main
from trainer.run.config.schema import load_config, parse_config
from trainer.run.folder.reader import JOB_FILE, RunFolder
from trainer.sweeps.launchers import LAUNCHERS, Cluster, Local, Ray, Slurm, parse_launcher
from trainer.sweeps.ledger import Job, read_ledger, unfinished
from trainer.sweeps.sweep.command import Request, sweep
from trainer.sweeps.workers import Command, Worker


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    for order in range(4):
        folder = tmp_path / f"000000000{order}"
        folder.mkdir()
        (folder / JOB_FILE).write_text(json.dumps({"order": order, "overrides": [f"seed={order}"]}))
    monkeypatch.setattr(Command, "of", staticmethod(command))
    return [replace(job, config={}) for job in read_ledger(tmp_path)]


# --- the local one ---


def run(launcher: Local, jobs: list[Job]) -> None:
    """Run jobs as a sweep does."""
    worker = FakeRuns().worker()
    with launcher.pool(jobs[0].folder.parent, worker) as pool:
        pool.run(jobs, worker)


def run_side_by_side(jobs: list[Job]) -> None:
    """Keep jobs from ending before each has begun, so that no process takes two of them."""

    def release() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not all((job.folder / "where.json").exists() for job in jobs):
            time.sleep(0.02)
        for job in jobs:
            (job.folder / "hold").unlink()

    for job in jobs:
        (job.folder / "hold").touch()
    Thread(target=release, daemon=True).start()


def test_two_jobs_at_a_time_take_turns_on_gpus(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers count the GPUs that this process sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6, GPU-5,4")
    run_side_by_side(jobs[:2])
    run(Local(n_jobs=2, gpus="3,1"), jobs)
    assert not unfinished(jobs)
    ran = where(jobs)
    assert len({process for process, _ in ran}) == 2
    assert len({(process, gpu) for process, gpu in ran}) == 2
    assert {gpu for _, gpu in ran} == {"4", "6"}


def test_workers_live_until_the_end_of_a_sweep_and_the_next_job_needs_not_wait(jobs: list[Job], tmp_path: Path) -> None:
    """So a search, whose jobs come one after another, imports PyTorch once in each."""
    worker = replace(FakeRuns().worker(), console=Console(file=(printed := StringIO()), width=500))
    (jobs[0].folder / "hold").touch()
    with Local(n_jobs=2).pool(tmp_path, worker) as pool:
        assert pool.at_a_time == 2
        pool.run(jobs[:2], worker, until_one_ends=True)
        assert unfinished(jobs[:2]) == [jobs[0]]
        pool.run([jobs[0], jobs[2]], worker, until_one_ends=True)
        assert unfinished(jobs[:3]) == [jobs[0]]
        (jobs[0].folder / "hold").unlink()
        pool.run([jobs[0]], worker, until_one_ends=True)
        assert not unfinished(jobs[:3])
        pool.run(jobs[3:], worker)
    assert not unfinished(jobs)
    # While a job runs, its epochs are there only.
    logs = ", ".join(str(tmp_path / f"worker-{index}.log") for index in range(2))
    assert printed.getvalue().startswith(f"the jobs print to {logs}\n")
    assert printed.getvalue().count("worker-0.log") == 1
    ran = [process for process, _ in where(jobs)]
    assert len({*ran[:2]}) == 2
    assert {*ran[2:]} <= {*ran[:2]}


def test_after_a_failed_job_its_process_is_replaced(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is no reason to give up."""
    monkeypatch.setattr("trainer.sweeps.launchers._ATTEMPTS", 1)
    for job in jobs[:2]:
        (job.folder / "fail").touch()
    run(Local(n_jobs=2), jobs[:3])
    assert [job.status() for job in jobs[:3]] == ["failed", "failed", "finished"]
    assert len({process for process, _ in where(jobs[:3])}) == 3


def test_jobs_may_kill_their_workers_often_if_they_make_progress(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those whose memory grows with each epoch; the last process lives on, and takes the other jobs."""
    monkeypatch.setattr("trainer.sweeps.launchers._ATTEMPTS", 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (jobs[1].folder / "deaths").write_text("2")
    run(Local(gpus="1"), jobs)
    assert [job.status() for job in jobs] == ["finished"] * 4
    ran = where(jobs)
    assert len({process for process, _ in ran}) == 2
    assert {gpu for _, gpu in ran} == {"1"}


def test_a_job_whose_processes_die_again_and_again_has_failed(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Command, "of", staticmethod(lambda *_: Command(("false",), {}, ".")))
    run(Local(n_jobs=2), jobs)
    errors = [RunFolder(job.folder).summary.error for job in jobs]
    assert {error.partition(". See")[0] for error in errors} == {"5 processes in a row died while running this job"}
    assert errors[0].endswith(".log")


def test_workers_end_with_the_process_that_leads_them(jobs: list[Job], tmp_path: Path) -> None:
    code = f"""
import signal
from pathlib import Path
from workers import command
print(command({str(tmp_path)!r}, None, (), {{}}).start(Path("log")).pid, flush=True)
signal.pause()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    leader = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    assert leader.stdout is not None
    with leader.stdout:
        process = Path("/proc", leader.stdout.readline().strip())
        assert process.exists()
        leader.kill()
        leader.wait()
    deadline = time.monotonic() + 30
    while process.exists() and " Z " not in (process / "stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_asks_the_workers_to_stop(
    times: int, jobs: list[Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"""
import os, signal, sys, time
from pathlib import Path
asked = []
def stop(*_):
    asked.append(Path(f"asked-{{os.getpid()}}").touch())
    if len(asked) == {times}:
        sys.exit(130)
signal.signal(signal.SIGTERM, stop)
Path(f"began-{{os.getpid()}}").touch()
while True:
    time.sleep(100)
"""
    command = Command((sys.executable, "-c", code), {}, str(tmp_path))
    monkeypatch.setattr(Command, "of", staticmethod(lambda *_: command))
    worker = FakeRuns().worker()

    def looks(message: str = "") -> None:
        if len(list(tmp_path.glob("began-*"))) == 2:
            raise KeyboardInterrupt(message)

    def press_ctrl_c_again() -> None:
        while len(list(tmp_path.glob("asked-*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(worker.signals, "check", looks)
    if times == 2:
        Thread(target=press_ctrl_c_again, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as caught, Local(n_jobs=2).pool(tmp_path, worker) as pool:
        pool.run(jobs, worker)
    assert (times == 1) == ("No more jobs" in str(caught.value))
    began = {file.name.removeprefix("began-") for file in tmp_path.glob("began-*")}
    assert began == {file.name.removeprefix("asked-") for file in tmp_path.glob("asked-*")}


@pytest.mark.parametrize("seen", [0, 2])
def test_gpus_that_are_not_there_are_rejected(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: seen)
    remedy = f"Use numbers below {seen}" if seen else "Remove hydra.launcher.gpus"
    configs = {name: parse_config(compose([f"fit.device={name}"])) for name in ("auto", "cpu")}
    launcher = parse_launcher({"kind": "local", "gpus": "0,2"})
    launcher.check([configs["cpu"]])
    with pytest.raises(UserError, match=rf"^hydra\.launcher\.gpus=0,2: PyTorch sees {seen} GPUs here\. {remedy}"):
        launcher.check(configs.values())


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_worker_prints_only_into_a_regular_file(kind: str, tmp_path: Path) -> None:
    """A stranger's sweep may hold a link in the position of the log."""
    (other := tmp_path / "other").write_text("precious")
    log = tmp_path / "worker-0.log"
    if kind == "link":
        log.symlink_to(other)
    else:
        os.mkfifo(log)
    worker = Command((sys.executable, "-c", "print('x')"), {}, str(tmp_path))
    with pytest.raises(UserError, match=rf"^{log} is (a link|not a regular file)"):
        worker.start(log)
    assert other.read_text() == "precious"


@pytest.mark.parametrize(("given", "seen"), [({"gpus": "3,1,0,2"}, "3,1 0,2"), ({}, "0,1 2,3")])
def test_each_job_sees_its_own_gpus_only(
    given: dict[str, str], seen: str, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a list, all GPUs are divided, and a fifth one is left over."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    launcher = parse_launcher({"kind": "local", "gpus_per_job": 2, **given})
    assert isinstance(launcher, Local)
    assert (launcher.at_a_time, launcher.ranks) == (2, 2)
    run_side_by_side(jobs[:2])
    run(launcher, jobs)
    assert {gpus for _, gpus in where(jobs)} == {*seen.split()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "local", "gpus": "0,1,2", "gpus_per_job": 2}, r"gpus=0,1,2: 3 GPUs .* multiple of 2\.$"),
        ({"kind": "local", "gpus_per_job": 1.5}, r"gpus_per_job: 1\.5 is not allowed"),
        ({"kind": "slurm", "gpus_per_job": 0}, r"gpus_per_job: 0 is not allowed"),
        ({"kind": "ray", "gpus_per_job": 1.5}, r"gpus_per_job=1\.5: .* Use a whole number"),
    ],
)
def test_impossible_numbers_of_gpus_are_rejected(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=rf"^hydra\.launcher\.{message}"):
        parse_launcher(given)


@pytest.mark.parametrize("kind", ["local", "slurm", "ray"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fit.gpus=1", r"^fit\.gpus=1 .* Remove fit\.gpus\.$"),
        ("fit.device=cuda:1", r"^fit\.device=cuda:1 .* Set fit\.device=auto\.$"),
        ("fit.batch_size=9", r"^fit\.batch_size=9 is not divisible .* such as 8\.$"),
    ],
)
def test_jobs_that_cannot_use_several_gpus_are_rejected(
    kind: str, override: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    launcher = parse_launcher({"kind": kind, "gpus_per_job": 2} | ({"cluster": "local"} if kind == "slurm" else {}))
    launcher.check([parse_config(compose([]))])
    with pytest.raises(UserError, match=message):
        launcher.check([parse_config(compose([override]))])


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_jobs_need_as_many_gpus_as_they_ask_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    launcher, config = parse_launcher({"kind": kind, "gpus_per_job": 4}), parse_config(compose([]))
    with pytest.raises(UserError, match=r"^hydra\.launcher\.gpus_per_job=4: PyTorch sees 2 GPUs here\. Use at most 2"):
        launcher.check([config])


@pytest.mark.slow
@pytest.mark.long
def test_a_job_trains_on_all_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, two processes on the CPU take the place of two GPUs."""
    images = draw_images(tmp_path / "images")
    given = [*settings_of(images), "++callbacks.trouble={}", "fit.batch_size=4", "fit.epochs=1"]
    launcher = ["hydra.sweep.dir=S", "hydra.launcher.gpus_per_job=2", "hydra.launcher.gpus=2,3", "fit.device=cpu"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    ended = main(["-m", *given, *launcher])
    log = (tmp_path / "S" / "worker-0.log").read_text()
    assert ended == 0, log
    (job,) = read_ledger(tmp_path / "S")
    assert (job.status(), state_of(job.folder).ranks, load_config(job.folder)["fit"]["gpus"]) == ("finished", 2, 2)
    assert log.count("finished after 1 epoch") == 1, "only rank 0 prints"


# --- clusters ---


def start(*tokens: str) -> None:
    """Start a sweep in the folder a."""
    sweep(Request.of(normalize(["seed=0,1", "hydra.sweep.dir=a", *tokens])), StopSignals())


@pytest.mark.parametrize("gpus", ["0,1", [0, 1], 0, None])
def test_gpus_can_be_given_in_any_way(gpus: object) -> None:
    launcher = parse_launcher({"kind": "local", "gpus": gpus})
    assert launcher.at_a_time == {None: 1, 0: 1}.get(gpus if not isinstance(gpus, list) else "many", 2)  # type: ignore[call-overload]


@pytest.mark.usefixtures("sample_drawn")
def test_a_launcher_of_another_package_is_named() -> None:
    with pytest.raises(UserError, match=r"^hydra/launcher: 'hydra_plugins\.joblib\.Launcher' cannot run"):
        parse_launcher({"_target_": "hydra_plugins.joblib.Launcher"})


@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize(("name", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_extra_is_named(
    name: str, module: str, jobs: list[Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"needs the package {module}\. .*: pip install 'dali-trainer\[{name}\]'"
    with pytest.raises(UserError, match=message):
        LAUNCHERS[name]().run(jobs, FakeRuns().worker())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        start(f"hydra/launcher={name}")
    assert not Path("a").exists()


@pytest.mark.usefixtures("sample_drawn")
def test_options_that_slurm_does_not_know_are_rejected_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^hydra\.launcher: Unknown argument 'partiton'"):
        start("hydra/launcher=slurm", "hydra.launcher.options.slurm_partiton=gpu")
    assert not Path("a").exists()


@dataclass(frozen=True)
class Inline(Cluster):
    """Works in this process, or not at all."""

    work: Callable[[], None]
    n_jobs: int = 8
    name, logs = "inline", "logs"

    @contextmanager
    def started(self, command: Command, count: int, folder: Path, worker: Worker) -> Iterator[Callable[[], bool]]:
        assert count == 4, "no more workers than jobs"
        self.work()
        yield lambda: True


def test_jobs_are_followed_until_all_have_ended(jobs: list[Job]) -> None:
    Inline(lambda: FakeRuns().worker().work(jobs)).run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)


def test_workers_that_end_before_the_jobs_are_an_error(jobs: list[Job], tmp_path: Path) -> None:
    message = f"hydra/launcher=inline: the workers ended before the jobs. See their logs in {tmp_path}/logs. "
    with pytest.raises(UserError) as rejected:
        Inline(lambda: None).run(jobs, FakeRuns().worker())
    assert str(rejected.value) == f"{message}Resume the sweep."


@pytest.mark.long
def test_submitit_runs_workers_on_this_machine(jobs: list[Job], tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    launcher = parse_launcher({"kind": "slurm", "cluster": "local", "n_jobs": 2, "options": {"timeout_min": 5}})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert list((tmp_path / "submitit").iterdir())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "--gpus-per-node=2"),
        ({"gpus_per_node": 2}, "--gpus-per-node=2"),
        ({"slurm_gres": "gpu:a100:2"}, "--gres=gpu:a100:2"),
    ],
)
def test_slurm_is_asked_for_the_gpus_of_a_job(
    options: dict[str, object], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    launcher = parse_launcher({"kind": "slurm", "cluster": "slurm", "gpus_per_job": 2, "options": options})
    assert isinstance(launcher, Slurm)
    executor = launcher._executor(tmp_path / "logs")._executor
    script = executor._make_submission_file_text("worker", "1")
    assert [line.split()[1] for line in script.splitlines() if "gpu" in line and "SBATCH" in line] == [expected]


def test_slurm_rejects_two_numbers_of_gpus(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    given = {"kind": "slurm", "cluster": "local", "gpus_per_job": 2, "options": {"gpus_per_node": 1}}
    with pytest.raises(UserError, match=r"^hydra\.launcher\.options\.gpus_per_node=1 .* Remove one of them\.$"):
        parse_launcher(given).check([])


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 1), (0.5, 1), (1, 1), (2, 2)])
def test_ray_is_asked_for_the_gpus_of_a_job(
    gpus: float, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, float] = {}

    def remote(**resources: float) -> Callable[[object], SimpleNamespace]:
        asked.update(resources)
        return lambda _: SimpleNamespace(remote=lambda command: command)

    def nothing(*_: object, **__: object) -> None: ...

    fake = SimpleNamespace(init=nothing, remote=remote, cancel=nothing, shutdown=nothing)
    monkeypatch.setitem(sys.modules, "ray", fake)
    launcher = parse_launcher({"kind": "ray", "gpus_per_job": gpus})
    assert isinstance(launcher, Ray)
    assert launcher.ranks == ranks
    with launcher.started(Command(("worker",), {}, "."), 1, tmp_path, FakeRuns().worker()):
        assert asked["num_gpus"] == gpus


def test_workers_are_submitted_as_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a cluster would show the difference."""
    submitit = pytest.importorskip("submitit")
    arrays: list[list[object]] = []

    class Executor:
        def __init__(self, **_: Any) -> None: ...

        def update_parameters(self, **_: Any) -> None: ...

        @contextmanager
        def batch(self) -> Iterator[None]:
            arrays.append([])
            yield

        def submit(self, command: object) -> SimpleNamespace:
            arrays[-1].append(command)
            return SimpleNamespace(job_id=f"7_{len(arrays[-1])}", done=lambda: True, wait=lambda: None)

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    command, said = Command(("worker",), {}, "."), StringIO()
    launcher = parse_launcher({"kind": "slurm", "n_jobs": 2})
    assert isinstance(launcher, Slurm)
    with launcher.started(command, 2, tmp_path, replace(FakeRuns().worker(), console=Console(file=said))) as ended:
        assert ended()
    assert arrays == [[command, command]]
    assert said.getvalue() == "submitted 2 workers: 7_1, 7_2\n"


@pytest.mark.long
def test_ray_runs_workers_on_this_machine(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    launcher = parse_launcher({"kind": "ray", "n_jobs": 2, "cpus_per_job": 0.5})
    launcher.run(jobs, FakeRuns().worker())
    assert not unfinished(jobs)
    assert len({process for process, _ in where(jobs)}) <= 2
    assert not ray.is_initialized()
