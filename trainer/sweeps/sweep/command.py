"""`python -m trainer sweep`: resume, retry or show a sweep, or work on its jobs.

The function `sweep` starts a sweep for `python -m trainer -m`.
"""

import os
import re
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from augment.cli.overrides import key_of, normalize, parse, split_sweep
from augment.cli.parser import INTERRUPTED, TRUST_FLAG, Parser, readable_errors, table_console, writing
from augment.cli.trust import HOW_TO_TRUST, Start, UntrustedError
from augment.support.console import PlainConsole
from augment.support.errors import UserError, suggest
from augment.support.files import require_in, shown, write_atomically
from augment.support.formatting import amount, printable
from augment.support.nested import leaves, merged
from augment.support.process import end_with_parent, launched_ranks
from augment.support.signals import StopSignals
from augment.support.untrusted_files import check_folder
from augment.support.yaml_files import read_yaml
from trainer.run import ranks
from trainer.run.config.schema import CONFIG_FILE
from trainer.run.folder.locks import SWEEP_FILE, named_folder
from trainer.run.folder.summary import FAILED
from trainer.run.jobs import check_jobs
from trainer.sweeps.comparison import report_sweep
from trainer.sweeps.launchers import Launcher, parse_launcher
from trainer.sweeps.ledger import Job, plan_jobs, read_ledger, unfinished, with_config
from trainer.sweeps.workers import NO_FURTHER_JOB, RANKS, WITH_PARENT, EndWithMain, Worker, work_from_lines

if TYPE_CHECKING:
    from trainer.sweeps.search_space import SearchPlan

_HYDRA = re.compile(r"hydra\b")
_PLUGINS = re.compile(r"hydra\.(launcher|sweeper)\.")

# Keys of Hydra's own sweeper, which plain sweeps use.
_GRID_KEYS = ("_target_", "max_batch_size", "params")

# The parts of Hydra's section that a sweep stores.
_SECTIONS = ("launcher", "sweeper")

_RESUME = "python -m trainer sweep resume"


@dataclass(frozen=True)
class Request:
    """The normalized overrides of a sweep command, and the configuration that they change."""

    fixed: tuple[str, ...]  # overrides with one value, except Hydra's
    swept: tuple[str, ...]  # overrides with several values
    hydra: tuple[str, ...]  # Hydra's own, such as `hydra.sweep.dir`
    start: Start = field(default_factory=Start)

    @classmethod
    def of(cls, tokens: Sequence[str], start: Start | None = None) -> "Request":
        """Sort normalized overrides into a request."""
        fixed, swept, hydra = list[str](), list[str](), list[str]()
        overrides = [parse(token) for token in tokens]
        keys = [key_of(override) for override in overrides]
        for index, (token, key, override) in enumerate(zip(tokens, keys, overrides, strict=True)):
            repeated = key in keys[index + 1 :]
            if repeated and "." in key and not override.is_delete():
                continue  # Hydra uses the last value of a key
            sweeps = override.is_sweep_override()
            if _HYDRA.match(key):
                hydra.append(_plugin_override(token, sweeps=sweeps))
            elif sweeps:
                swept.append(token)
            else:
                fixed.append(token)
        return cls(tuple(fixed), tuple(swept), tuple(hydra), start or Start())

    def section(self) -> dict[str, Any]:
        """Compose the sweep's folder, launcher and sweeper. Only the folder's interpolations are resolved."""
        composed = self.start.hydra([*self.fixed, *self.hydra])
        parts = {name: OmegaConf.to_container(composed[name], resolve=False) for name in _SECTIONS}
        return {"folder": named_folder(composed.sweep.dir, "hydra.sweep.dir"), **parts}

    def params(self, sweeper: Mapping[str, Any]) -> list[str]:
        """Return the overrides in `hydra.sweeper.params` whose keys the command line does not set."""
        named = {key_of(parse(token)) for token in (*self.fixed, *self.swept)}
        params = sweeper.get("params") or {}
        return normalize([f"{key}={value}" for key, value in params.items() if str(key) not in named])


def sweep(request: Request, signals: StopSignals) -> int:
    """Check all jobs, then write and run them. Return the exit code."""
    section = request.section()
    folder, launcher = section["folder"], parse_launcher(section["launcher"])
    check_folder(folder)
    searches = is_search(section["sweeper"])
    if (folder / CONFIG_FILE).is_file():
        raise UserError(f"hydra.sweep.dir={shown(folder)} already contains a run. Choose another folder.")
    worker = Worker(PlainConsole(), signals, ranks=launcher.ranks)
    about = {
        "command": [*request.fixed, *request.swept, *request.hydra],
        "config_name": request.start.config_name,
        **{name: section[name] for name in _SECTIONS},
    }
    params = request.params(section["sweeper"])
    if searches:
        from trainer.sweeps.search_space import SearchPlan

        plan = SearchPlan.of(section["sweeper"], request.fixed, [*params, *request.swept], folder, request.start)
        return search(plan, about, launcher, worker)
    overrides = split_sweep([*params, *request.fixed, *request.swept])
    (fixed,) = split_sweep(request.fixed)  # in the notation of the jobs, with 0.001 for 1e-3
    configs = check_jobs(overrides, start=request.start, signals=signals)
    launcher.check(configs)
    signals.check()
    signals.hold()  # from here on, folders exist and their runs handle signals
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        jobs = plan_jobs(folder, zip(configs, overrides, strict=True), fixed)
        write_sweep(folder, about)
    if repeated := len(overrides) - len(jobs):
        worker.say(f"{amount(repeated, 'job')} left out, because other jobs have the same settings")
    return run(folder, jobs, launcher, worker)


def run(folder: Path, jobs: Sequence[Job], launcher: Launcher, worker: Worker) -> int:
    """Run a sweep's unfinished jobs and print its tables. Return the exit code."""
    if done := len(jobs) - len(unfinished(jobs)):
        worker.say(f"{amount(len(jobs), 'job')}, {done:,} of them already done")
    with continued(folder):
        try:
            with launcher.pool(folder, worker) as pool:
                pool.run(jobs, worker)
        finally:
            report_sweep(folder, table_console())
    return _exit_code(jobs, worker, f"Rerun failed jobs with: python -m trainer sweep retry {shown(folder)}")


def search(plan: "SearchPlan", about: Mapping[str, Any], launcher: Launcher, worker: Worker) -> int:
    """Run a search and print its result. `about` goes into the sweep's file. Return the exit code."""
    from trainer.sweeps import search as searching  # importing Optuna takes a while

    folder = plan.folder
    launcher.check([plan.base])
    worker.signals.check()
    worker.signals.hold()
    plan.check_start()
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        write_sweep(folder, {**about, **plan.plain()})
    worker.search = plan
    with continued(folder), launcher.pool(folder, worker) as pool:
        code = searching.search(plan, pool, worker)
    # Only failed jobs matter here: an interrupted search may have left jobs that it no longer needs.
    jobs = read_ledger(folder)
    return _exit_code(jobs, worker, f"Add trials with: {_RESUME} {shown(folder)} hydra.sweeper.n_trials=N") or code


def is_search(sweeper: Mapping[str, Any]) -> bool:
    """Return whether Hydra's section `sweeper` configures a search. Reject anything but a search or a plain sweep."""
    searches = sweeper.get("kind") == "optuna"
    if "kind" not in sweeper and "basic_sweeper" not in str(sweeper.get("_target_")):
        raise UserError(f"hydra/sweeper: {sweeper.get('_target_')} is not supported. Allowed: basic, optuna.")
    if not searches and (unknown := [key for key in sweeper if key not in _GRID_KEYS]):
        raise UserError(f"hydra.sweeper.{unknown[0]} needs a search. Add hydra/sweeper=optuna.")
    return searches


@contextmanager
def continued(folder: Path) -> Iterator[None]:
    """Add the command that continues a sweep to the message about a signal or a full disk."""
    again = f"Continue with: {_RESUME} {shown(folder)}"
    try:
        yield
    except OSError as error:
        file = shown(Path(error.filename) if error.filename else folder)
        raise UserError(f"{file}: {error.strerror}. {again}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{NO_FURTHER_JOB} {again}") from None


def _exit_code(jobs: Sequence[Job], worker: Worker, remedy: str) -> int:
    """Return the exit code of finished work. Print a remedy for failed jobs."""
    failed = [job.status() for job in jobs].count(FAILED)
    if not failed:
        return 0
    worker.say(f"{amount(failed, 'job')} failed. {remedy}")
    return 1


def write_sweep(folder: Path, about: Mapping[str, Any]) -> None:
    """Record a sweep's command, launcher and sweeper, and a search's space, for `sweep resume`."""
    write_atomically(folder / SWEEP_FILE, OmegaConf.to_yaml(about))


def read_sweep(folder: Path) -> dict[str, Any]:
    """Read the file that `write_sweep` wrote."""
    require_in(folder, SWEEP_FILE, allowed="the folder of a sweep")
    found = read_yaml(file := folder / SWEEP_FILE, folder=folder)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in _SECTIONS):
        raise UserError(
            f"{file} is damaged, or a version before 0.19 wrote it. Repeat the sweep's command with the "
            "same hydra.sweep.dir."
        )
    return found


def _plugin_override(token: str, *, sweeps: bool) -> str:
    """Adapt an override to Hydra: `++` makes it accept our settings, and quotes make `gpus=0,1` a single value."""
    bare = token.lstrip("+")
    if not _PLUGINS.match(bare):
        return token
    key, _, value = bare.partition("=")
    return f"++{key}='{value}'" if sweeps else f"++{bare}"


_EXAMPLES = """\
  resume SWEEP                            finish an interrupted sweep
  resume SWEEP hydra.launcher.n_jobs=2    finish it with two jobs at a time
  retry SWEEP                             rerun the failed jobs, from their checkpoints
  show SWEEP                              print the tables so far
  work SWEEP                              work on the jobs in this process, on any host

To start a sweep, run: python -m trainer -m aug=imagenette seed=0,1,2"""

_ACTIONS = ("resume", "retry", "show", "work")

_SWEEP_KEYS = ("hydra/launcher", "hydra.launcher.", "hydra/sweeper", "hydra.sweeper.")


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return the exit code."""
    usage = f"{'|'.join(_ACTIONS)} SWEEP [key=value ...]"
    parser = Parser("trainer sweep", "Resume, retry and show sweeps.", _EXAMPLES, arguments=usage)
    parser.add_trust_flag()
    parser.add_argument(WITH_PARENT, action="store_true", help=SUPPRESS)  # for workers that launchers start
    parser.add_argument(RANKS, type=int, default=1, help=SUPPRESS)
    with readable_errors(), StopSignals() as signals:
        options, (named, folder), overrides = parser.split_paths(arguments)
        if (action := str(named)) not in _ACTIONS:
            raise UserError(f"{action}: unknown action.{suggest(action, _ACTIONS, {'list': 'show'})}")
        try:
            if options.with_parent:
                if options.ranks > launched_ranks():
                    end_with_parent()
                    return ranks.start(options.ranks, ("sweep", *arguments))
                return _work_for_parent(folder, signals)
            if action == "show":
                require_in(folder, SWEEP_FILE, allowed="the folder of a sweep")
                return 0 if report_sweep(folder, table_console(), write=False) else 1
            return _continue(action, folder, overrides, options, signals)
        except KeyboardInterrupt as error:
            if text := str(error):
                sys.stdout.write(printable(f"{text}\n"))
            return INTERRUPTED


def _work_for_parent(folder: Path, signals: StopSignals) -> int:
    """Work on the jobs that the parent process has checked and sends. Return the exit code."""
    end_with_parent()
    if ranks.follows():
        return ranks.follow(callbacks=[EndWithMain()])
    signals.hold()
    with continued(folder):
        work_from_lines(folder, Worker(PlainConsole(), signals), iter(sys.stdin))
    return 0


def _continue(action: str, folder: Path, overrides: Sequence[str], options: Namespace, signals: StopSignals) -> int:
    """Resume a sweep, retry its failed jobs, or work on it. Return the exit code."""
    about = read_sweep(folder)
    check_folder(folder)
    for token in overrides:
        if not key_of(parse(token)).startswith(_SWEEP_KEYS):
            raise UserError(
                f"{token} is not allowed here. Allowed: hydra/launcher=..., hydra.launcher.*, hydra.sweeper.*."
            )
    launcher, about["sweeper"] = _launcher_and_sweeper(about, normalize(overrides), trust=options.trust)
    jobs, plan = read_ledger(folder), None
    if is_search(about["sweeper"]):
        from trainer.sweeps.search_space import SearchPlan

        if action == "retry":
            raise UserError(
                f"sweep retry: {shown(folder)} is a search, which does not rerun trials. To add trials: {_RESUME} "
                f"{shown(folder)} hydra.sweeper.n_trials=N. To rerun a finalist, delete its folder and resume."
            )
        plan = SearchPlan.read(about["sweeper"], about, folder, trust=options.trust)
    worker = Worker(PlainConsole(), signals, plan, ranks=launcher.ranks)
    signals.check()
    signals.hold()
    if plan is not None and action == "resume":
        return search(plan, about, launcher, worker)
    jobs = [with_config(job, trust=options.trust) for job in jobs]
    retried = [job for job in jobs if job.status() == FAILED] if action == "retry" else []
    worker.check([*unfinished(jobs), *retried])
    if action == "work":
        with continued(folder):
            worker.work(jobs)
        return 0
    for job in retried:
        job.retry()
    return run(folder, jobs, launcher, worker)


def _launcher_and_sweeper(
    about: Mapping[str, Any], tokens: Sequence[str], *, trust: bool
) -> tuple[Launcher, Mapping[str, Any]]:
    """Return a sweep's launcher and sweeper settings. Values on the command line replace stored values.

    Without `trust`, a sweep folder may not choose a launcher that runs commands, or more processes than cores.
    """
    given = Request.of(tokens).section()
    given_keys = {key_of(parse(token)) for token in tokens}
    sections: dict[str, Any] = {}
    for name in _SECTIONS:
        if f"hydra/{name}" in given_keys:
            sections[name] = given[name]
            continue
        for key, value in leaves({"hydra": {name: about[name]}}):
            if "${" in f"{key} {value}" and key not in given_keys and not trust:
                raise UntrustedError(f"{key}: {value} is only in the sweep folder. Pass {key}=VALUE {HOW_TO_TRUST}.")
        replaced = {key.removeprefix(f"hydra.{name}.").split(".")[0] for key in given_keys}
        values = {key: value for key, value in given[name].items() if key in replaced}
        sections[name] = merged(about[name], values)
    launcher, risky = parse_launcher(sections["launcher"]), list[str]()
    if launcher.name != "local":
        risky = [f"hydra/launcher={launcher.name}"]
    elif launcher.at_a_time * launcher.ranks > (os.cpu_count() or 1):
        counts = {"n_jobs": launcher.at_a_time, "gpus_per_job": launcher.ranks}
        risky = [f"hydra.launcher.{name}={count}" for name, count in counts.items() if count > 1]
    for override in risky:
        if not trust and not {"hydra/launcher", override.partition("=")[0]} & given_keys:
            raise UntrustedError(
                f"{override} is only in the sweep folder. Pass it, or {TRUST_FLAG}, on the command line."
            )
    return launcher, sections["sweeper"]
