"""Start a sweep: from its command to planned jobs, which a launcher runs, and to the tables at the end."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from augment.cli.compose import compose_run
from augment.cli.overrides import key_of, normalize, parse, split_sweep
from augment.cli.parser import table_console, writing
from augment.cli.trust import Gate, compose_job
from augment.support.console import PlainConsole
from augment.support.errors import UserError
from augment.support.files import require_in, shown, write_atomically
from augment.support.reading import check_folder, contents
from augment.support.signals import StopSignals
from augment.support.text import amount
from augment.support.yaml_files import read_yaml
from trainer.run.config import CONFIG_FILE
from trainer.run.folder import SWEEP_FILE, named_folder
from trainer.run.jobs import check_jobs
from trainer.run.older import renamed
from trainer.run.run_folder import JOB_FILE
from trainer.run.summary import FAILED
from trainer.sweeps.launchers import Launcher, parse_launcher
from trainer.sweeps.ledger import Job, plan_jobs, read_ledger, unfinished
from trainer.sweeps.table import report_sweep
from trainer.sweeps.work import NO_FURTHER_JOB, Worker

_HYDRA = re.compile(r"hydra\b")

# Keys of Hydra's own sweeper, which plain sweeps have.
_OF_GRIDS = ("_target_", "max_batch_size", "params")

_PLUGINS = re.compile(r"hydra\.(launcher|sweeper)\.")


@dataclass(frozen=True)
class Request:
    """What a command asks of a sweep: normalized overrides, and the file of conf/ to start from."""

    fixed: tuple[str, ...]  # those with one value, without Hydra's own
    swept: tuple[str, ...]  # those with several values
    hydra: tuple[str, ...]  # Hydra's own, such as `hydra.sweep.dir`
    config_name: str = "config"

    @classmethod
    def of(cls, tokens: Sequence[str], config_name: str = "config") -> "Request":
        """Return the request of normalized overrides."""
        sorted_out: dict[str, list[str]] = {"fixed": [], "swept": [], "hydra": []}
        overrides = [parse(token) for token in tokens]
        last = {key_of(override): index for index, override in enumerate(overrides)}
        for index, (token, override) in enumerate(zip(tokens, overrides, strict=True)):
            if index < last[key_of(override)] and "." in key_of(override) and not override.is_delete():
                continue  # as Hydra has it, the last value counts
            if _HYDRA.match(key_of(override)):
                sorted_out["hydra"].append(_of_hydra(token, sweeps=override.is_sweep_override()))
            else:
                sorted_out["swept" if override.is_sweep_override() else "fixed"].append(token)
        return cls(**{name: tuple(values) for name, values in sorted_out.items()}, config_name=config_name)

    def section(self) -> dict[str, Any]:
        """Return Hydra's own section of the configuration as plain values, those of the folder resolved."""
        composed = compose_run([*self.fixed, *self.hydra], config_name=self.config_name).hydra
        parts = {name: OmegaConf.to_container(composed[name], resolve=False) for name in ("launcher", "sweeper")}
        return {"folder": named_folder(composed.sweep.dir, "hydra.sweep.dir"), **parts}

    def params(self, sweeper: Mapping[str, Any]) -> list[str]:
        """Return what `hydra.sweeper.params` of a configuration varies, but for keys that the command line names."""
        named = {key_of(parse(token)) for token in (*self.fixed, *self.swept)}
        params = sweeper.get("params") or {}
        return normalize([f"{key}={value}" for key, value in params.items() if str(key) not in named])


def sweep(request: Request, signals: StopSignals) -> int:
    """Check all jobs, before anything is written, then run those that have not ended; return the exit code."""
    section = request.section()
    folder, launcher = section["folder"], parse_launcher(section["launcher"])
    check_folder(folder)
    searches = is_search(section["sweeper"])
    if not searches and (unknown := [key for key in section["sweeper"] if key not in _OF_GRIDS]):
        raise UserError(f"hydra.sweeper.{unknown[0]}: needs a search. Allowed: hydra/sweeper=optuna as well.")
    holds = "a run" if (folder / CONFIG_FILE).is_file() else ""
    if (folder / SWEEP_FILE).is_file() and is_search(read_request(folder).section()["sweeper"]) != searches:
        holds = "a plain sweep" if searches else "a search"
    if holds:
        raise UserError(f"hydra.sweep.dir={shown(folder)}: {holds} is in this folder. Allowed: another one.")
    worker = Worker(PlainConsole(), signals, request.config_name)
    if searches:
        _check_found(folder, request, section["sweeper"])
        return search(request, section["sweeper"], folder, launcher, worker)
    overrides = split_sweep([*request.params(section["sweeper"]), *request.fixed, *request.swept])
    (fixed,) = split_sweep(request.fixed)  # as those of jobs are written: 0.001 for 1e-3
    configs = check_jobs(overrides, config_name=request.config_name, signals=signals)
    launcher.check(configs)
    signals.check()
    signals.hold()  # from here on there are folders, whose runs handle them
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        jobs = plan_jobs(folder, zip(configs, overrides, strict=True), fixed)
        write_request(folder, request)
    return run(folder, jobs, launcher, worker)


def run(folder: Path, jobs: Sequence[Job], launcher: Launcher, worker: Worker) -> int:
    """Run the jobs of a sweep that have not ended, and print its tables; return the exit code."""
    if done := len(jobs) - len(unfinished(jobs)):
        worker.say(f"{amount(len(jobs), 'job')}, {done:,} of them done before")
    with continued(folder):
        try:
            with launcher.pool(folder, worker) as pool:
                pool.run(jobs, worker)
        finally:
            report_sweep(folder, table_console())
    return _ended(jobs, worker, f"python -m trainer sweep retry {shown(folder)} runs what failed again")


def search(
    request: Request,
    sweeper: Mapping[str, Any],
    folder: Path,
    launcher: Launcher,
    worker: Worker,
) -> int:
    """Search as asked, and as Hydra's section `sweeper` says, and print what was found; return the exit code."""
    from trainer.sweeps import plan as planning  # Optuna takes a while to import
    from trainer.sweeps import search as searching

    swept = [*request.params(sweeper), *request.swept]
    planned = planning.Plan.of(sweeper, request.fixed, swept, folder, request.config_name)
    launcher.check([planned.base])
    worker.signals.check()
    worker.signals.hold()
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        planning.begin(planned)
        write_request(folder, request)
    with continued(folder), launcher.pool(folder, worker) as pool:
        code = searching.search(planned, pool, worker)
    again = f"python -m trainer sweep resume {shown(folder)} hydra.sweeper.n_trials=N adds others"
    return _ended(read_ledger(folder), worker, again) or code


def _check_found(folder: Path, request: Request, sweeper: Mapping[str, Any]) -> None:
    """Check the jobs that a search goes on with, but did not make: their folder may be a stranger's."""
    varied = {key_of(parse(token)) for token in (*request.params(sweeper), *request.swept)} | {"seed"}
    named = compose_run(request.fixed, config_name=request.config_name)
    for job in read_ledger(folder):
        if any(o not in request.fixed and key_of(parse(o)) not in varied for o in job.overrides):
            compose_job(job.overrides, request.config_name, Gate(job.folder / JOB_FILE, lambda: named.plain))


def is_search(sweeper: Mapping[str, Any]) -> bool:
    """Return whether Hydra's section `sweeper` asks for a search, not a plain sweep; nothing else is allowed."""
    if "kind" not in sweeper and "basic_sweeper" not in str(sweeper.get("_target_")):
        raise UserError(f"hydra/sweeper: {sweeper.get('_target_')} is not supported. Allowed: basic, optuna.")
    return sweeper.get("kind") == "optuna"


@contextmanager
def continued(folder: Path) -> Iterator[None]:
    """Say how to continue what a signal or a full disk ended."""
    again = f"python -m trainer sweep resume {shown(folder)} continues it"
    try:
        yield
    except OSError as error:
        where = shown(Path(error.filename) if error.filename else folder)
        raise UserError(f"{where}: {error.strerror}; {again}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{NO_FURTHER_JOB}; {again}") from None


def _ended(jobs: Sequence[Job], worker: Worker, again: str) -> int:
    """Say what can be done about failed jobs, `again`; return the exit code.

    A search that was interrupted and continued may have left jobs that it no longer needs.
    """
    if failed := [job.status() for job in jobs].count(FAILED):
        worker.say(f"{amount(failed, 'job')} failed; {again}")
    return 1 if failed else 0


def write_request(folder: Path, request: Request) -> None:
    """Record what was asked of a sweep, for `sweep resume`."""
    plain = {"command": [*request.fixed, *request.swept, *request.hydra], "config_name": request.config_name}
    write_atomically(folder / SWEEP_FILE, OmegaConf.to_yaml(plain))


def read_request(folder: Path) -> Request:
    """Return what was asked of a sweep."""
    file = folder / SWEEP_FILE
    require_in(folder, SWEEP_FILE, allowed="the folder of a sweep")
    found: Any = read_yaml(file, folder=folder)
    with contents(file):
        return Request.of(renamed(map(str, found["command"])), str(found.get("config_name", "config")))


def _of_hydra(token: str, *, sweeps: bool) -> str:
    """Return one of Hydra's own overrides as Hydra expects it: it adds our settings, and `gpus=0,1` is one value."""
    bare = token.lstrip("+")
    if not _PLUGINS.match(bare):
        return token
    key, _, value = bare.partition("=")
    return f"++{key}='{value}'" if sweeps else f"++{bare}"
