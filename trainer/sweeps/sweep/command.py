"""Start a sweep; and `python -m trainer sweep`: resume it, retry its failed jobs, show its tables, or work on it."""

import os
import re
import sys
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from augment.cli.overrides import key_of, normalize, parse, split_sweep
from augment.cli.parser import INTERRUPTED, TRUST_FLAG, Parser, readable_errors, table_console, writing
from augment.cli.trust import ALLOWED, Start, UntrustedError
from augment.support.console import PlainConsole
from augment.support.errors import UserError, suggest
from augment.support.files import require_in, shown, write_atomically
from augment.support.formatting import amount, printable
from augment.support.nested import leaves, merged
from augment.support.process import end_with_parent
from augment.support.signals import StopSignals
from augment.support.untrusted_files import check_folder
from augment.support.yaml_files import read_yaml
from trainer.run.config.schema import CONFIG_FILE
from trainer.run.config.sweep_settings import JOURNAL_FILE
from trainer.run.folder.ownership import FAILED, SWEEP_FILE, named_folder
from trainer.run.jobs import check_jobs
from trainer.sweeps.comparison import report_sweep
from trainer.sweeps.launchers import Launcher, parse_launcher
from trainer.sweeps.ledger import Job, plan_jobs, read_ledger, unfinished, with_config
from trainer.sweeps.workers import NO_FURTHER_JOB, WITH_PARENT, Worker, work_as_told

if TYPE_CHECKING:
    from trainer.sweeps.search_space import SearchPlan

_HYDRA = re.compile(r"hydra\b")

# Keys of Hydra's own sweeper, which plain sweeps have.
_OF_GRIDS = ("_target_", "max_batch_size", "params")

# What a sweep's file holds of Hydra's section.
_SECTIONS = ("launcher", "sweeper")

_LOCAL_GRID = {"launcher": {"kind": "local"}, "sweeper": {"_target_": "basic_sweeper"}}

_PLUGINS = re.compile(r"hydra\.(launcher|sweeper)\.")


@dataclass(frozen=True)
class Request:
    """What a command asks of a sweep: normalized overrides, and what they are put on."""

    fixed: tuple[str, ...]  # those with one value, without Hydra's own
    swept: tuple[str, ...]  # those with several values
    hydra: tuple[str, ...]  # Hydra's own, such as `hydra.sweep.dir`
    start: Start = field(default_factory=Start)

    @classmethod
    def of(cls, tokens: Sequence[str], start: Start | None = None) -> "Request":
        """Return the request of normalized overrides."""
        overrides = [parse(token) for token in tokens]
        keys = [key_of(override) for override in overrides]
        given = [
            (token, key, override.is_sweep_override())
            for index, (token, key, override) in enumerate(zip(tokens, keys, overrides, strict=True))
            # As Hydra has it, the last value of a key counts.
            if key not in keys[index + 1 :] or "." not in key or override.is_delete()
        ]
        return cls(
            tuple(token for token, key, sweeps in given if not sweeps and not _HYDRA.match(key)),
            tuple(token for token, key, sweeps in given if sweeps and not _HYDRA.match(key)),
            tuple(_of_hydra(token, sweeps=sweeps) for token, key, sweeps in given if _HYDRA.match(key)),
            start or Start(),
        )

    def section(self) -> dict[str, Any]:
        """Return Hydra's own section of the configuration as plain values, those of the folder resolved."""
        composed = self.start.hydra([*self.fixed, *self.hydra])
        parts = {name: OmegaConf.to_container(composed[name], resolve=False) for name in _SECTIONS}
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
    holds = "a run" if (folder / CONFIG_FILE).is_file() else ""
    if (folder / SWEEP_FILE).is_file() and (folder / JOURNAL_FILE).is_file() != searches:
        holds = "a plain sweep" if searches else "a search"
    if holds:
        raise UserError(f"hydra.sweep.dir={shown(folder)}: {holds} is in this folder. Allowed: another one.")
    worker = Worker(PlainConsole(), signals)
    about = {
        "command": [*request.fixed, *request.swept, *request.hydra],
        "config_name": request.start.config_name,
        **{name: section[name] for name in _SECTIONS},
    }
    if searches:
        from trainer.sweeps.search_space import SearchPlan

        swept = [*request.params(section["sweeper"]), *request.swept]
        planned = SearchPlan.of(section["sweeper"], request.fixed, swept, folder, request.start)
        return search(planned, about, launcher, worker)
    overrides = split_sweep([*request.params(section["sweeper"]), *request.fixed, *request.swept])
    (fixed,) = split_sweep(request.fixed)  # as those of jobs are written: 0.001 for 1e-3
    configs = check_jobs(overrides, start=request.start, signals=signals)
    launcher.check(configs)
    signals.check()
    signals.hold()  # from here on there are folders, whose runs handle them
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        jobs = plan_jobs(folder, zip(configs, overrides, strict=True), fixed)
        write_sweep(folder, about)
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


def search(planned: "SearchPlan", about: Mapping[str, Any], launcher: Launcher, worker: Worker) -> int:
    """Search as planned, and print what was found; `about` is what the sweep's file says. Return the exit code."""
    from trainer.sweeps import search as searching  # Optuna takes a while to import
    from trainer.sweeps.search_space import begin

    folder = planned.folder
    launcher.check([planned.base])
    worker.signals.check()
    worker.signals.hold()
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        begin(planned)
        write_sweep(folder, {**about, **planned.plain()})
    worker.search = planned
    with continued(folder), launcher.pool(folder, worker) as pool:
        code = searching.search(planned, pool, worker)
    again = f"python -m trainer sweep resume {shown(folder)} hydra.sweeper.n_trials=N adds others"
    return _ended(read_ledger(folder), worker, again) or code


def is_search(sweeper: Mapping[str, Any]) -> bool:
    """Return whether Hydra's section `sweeper` asks for a search, not a plain sweep; nothing else is allowed."""
    searches = sweeper.get("kind") == "optuna"
    if "kind" not in sweeper and "basic_sweeper" not in str(sweeper.get("_target_")):
        raise UserError(f"hydra/sweeper: {sweeper.get('_target_')} is not supported. Allowed: basic, optuna.")
    if not searches and (unknown := [key for key in sweeper if key not in _OF_GRIDS]):
        raise UserError(f"hydra.sweeper.{unknown[0]}: needs a search. Allowed: beside hydra/sweeper=optuna.")
    return searches


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


def write_sweep(folder: Path, about: Mapping[str, Any]) -> None:
    """Record what a sweep is, for `sweep resume`: its launcher and its sweeper, and what a search is about."""
    write_atomically(folder / SWEEP_FILE, OmegaConf.to_yaml(about))


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return what `write_sweep` recorded."""
    require_in(folder, SWEEP_FILE, allowed="the folder of a sweep")
    found = read_yaml(file := folder / SWEEP_FILE, folder=folder)
    if isinstance(found, dict) and not (folder / JOURNAL_FILE).is_file():  # up to 0.18, it held overrides alone
        found = {**_LOCAL_GRID, **found}
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in _SECTIONS):
        raise UserError(
            f"{file}: damaged, or written by a version before 0.19. Repeat the command of the sweep with its "
            "hydra.sweep.dir."
        )
    return found


def _of_hydra(token: str, *, sweeps: bool) -> str:
    """Return one of Hydra's own overrides as Hydra expects it: it adds our settings, and `gpus=0,1` is one value."""
    bare = token.lstrip("+")
    if not _PLUGINS.match(bare):
        return token
    key, _, value = bare.partition("=")
    return f"++{key}='{value}'" if sweeps else f"++{bare}"


_EXAMPLES = """\
  resume SWEEP                            finish what was interrupted, as it was started
  resume SWEEP hydra.launcher.n_jobs=2    the same, with two jobs at a time
  retry SWEEP                             run the failed jobs again, from their checkpoints
  retry SWEEP --job 1f0c9a3b42            only this one
  show SWEEP                              print its tables
  work SWEEP                              work on its jobs in this process, alongside others, on any host"""

_ACTIONS = ("resume", "retry", "show", "work")

_OWN = ("hydra/launcher", "hydra.launcher.", "hydra/sweeper", "hydra.sweeper.")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    usage = f"{'|'.join(_ACTIONS)} SWEEP [key=value ...]"
    parser = Parser("trainer sweep", "Resume, retry and show sweeps.", _EXAMPLES, arguments=usage)
    parser.add_trust_flag()
    parser.add_argument("--job", action="append", metavar="ID", help="only this job; can be repeated")
    parser.add_argument(WITH_PARENT, action="store_true", help=SUPPRESS)  # of the workers that launchers start
    with readable_errors(), StopSignals() as signals:
        options, paths, overrides = parser.split_paths(arguments)
        action, folders = str(paths[0]), paths[1:]
        if action not in _ACTIONS:
            raise UserError(f"{action}: unknown.{suggest(action, _ACTIONS, {'list': 'show'})}")
        if len(folders) != 1:
            raise UserError(
                f"{action}: {amount(len(folders), 'folder')}. Allowed: {action} SWEEP, the folder of one sweep."
            )
        (folder,) = folders
        if options.with_parent:
            end_with_parent()
            return _work_for_parent(folder, signals)
        if action == "show":
            require_in(folder, SWEEP_FILE, allowed="the folder of a sweep")
            return 0 if report_sweep(folder, table_console(), write=False) else 1
        about = read_sweep(folder)
        check_folder(folder)
        if other := next((token for token in overrides if not key_of(parse(token)).startswith(_OWN)), None):
            raise UserError(
                f"{other}: not allowed here. Allowed: hydra/launcher=..., hydra.launcher.*, hydra.sweeper.*."
            )
        launcher, about["sweeper"] = _sections(about, normalize(overrides), trust=options.trust)
        searches, planned = is_search(about["sweeper"]), None
        retried = action == "retry"
        if searches and retried:
            raise UserError(
                f"retry: {shown(folder)} is a search, in which failed trials count. Allowed: resume with a "
                "larger hydra.sweeper.n_trials; it also begins jobs again whose folders were deleted."
            )
        jobs = _chosen(folder, options.job)
        if not searches or action == "work":  # a search determines the configurations of its jobs again
            jobs = [with_config(job, trust=options.trust) for job in jobs]
        if searches:
            from trainer.sweeps.search_space import SearchPlan

            planned = SearchPlan.read(about["sweeper"], about, folder, trust=options.trust)
        worker = Worker(PlainConsole(), signals, planned)
        signals.check()
        signals.hold()
        try:
            if planned is not None and action == "resume":
                return search(planned, about, launcher, worker)
            worker.check([*unfinished(jobs), *(job for job in jobs if retried and job.status() == FAILED)])
            if action == "work":
                with continued(folder):
                    worker.work(jobs)
                return 0
            for job in jobs if retried else ():
                job.retry()
            return run(folder, jobs, launcher, worker)
        except KeyboardInterrupt as error:
            sys.stdout.write(printable(f"{error}\n"))
            return INTERRUPTED


def _work_for_parent(folder: Path, signals: StopSignals) -> int:
    """Work on the jobs that the process which started this one names and has checked; return the exit code."""
    signals.hold()
    try:
        with continued(folder):
            work_as_told(folder, Worker(PlainConsole(), signals), iter(sys.stdin))
    except KeyboardInterrupt as error:
        sys.stdout.write(printable(f"{error}\n"))
        return INTERRUPTED
    return 0


def _chosen(folder: Path, ids: Sequence[str] | None) -> list[Job]:
    known = {job.id: job for job in read_ledger(folder)}
    if (unknown := next((name for name in ids or () if name not in known), None)) is not None:
        raise UserError(f"--job {unknown}: no such job in {folder}.{suggest(unknown, known)}")
    return [known[name] for name in ids or known]


def _sections(about: Mapping[str, Any], tokens: Sequence[str], *, trust: bool) -> tuple[Launcher, Mapping[str, Any]]:
    """Return the launcher of a sweep and the settings of its sweeper, with those of the command line on top.

    A launcher other than the local one can run commands of its own, so that a stranger's sweep does not choose it.
    """
    own, named, kept = Request.of(tokens).section(), {key_of(parse(token)) for token in tokens}, dict(about)
    for name in _SECTIONS:
        for key, value in leaves({"hydra": {name: about[name]}}):
            if not trust and key not in named and f"hydra/{name}" not in named and "${" in f"{key} {value}":
                raise UntrustedError(f"{key}: {value} is in the sweep folder only. Pass {key}=VALUE {ALLOWED}.")
        asked = {one.removeprefix(f"hydra.{name}.").split(".")[0] for one in named}
        given = {key: value for key, value in own[name].items() if key in asked}
        kept[name] = own[name] if f"hydra/{name}" in named else merged(about[name], given)
    launcher, theirs = parse_launcher(kept["launcher"]), ""
    if launcher.name != "local":
        theirs = f"hydra/launcher={launcher.name}"
    elif launcher.at_a_time > (os.cpu_count() or 1):
        theirs = f"hydra.launcher.n_jobs={launcher.at_a_time}"
    if theirs and not trust and not {"hydra/launcher", theirs.partition("=")[0]} & named:
        raise UntrustedError(f"{theirs} is in the sweep folder only. Pass it, or {TRUST_FLAG}, on the command line.")
    return launcher, kept["sweeper"]
