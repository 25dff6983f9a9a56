"""Start a sweep; and `python -m trainer sweep`: resume it, retry its failed jobs, show its tables, or work on it."""

import re
import sys
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from augment.cli.compose import compose_run
from augment.cli.overrides import key_of, normalize, parse, split_sweep
from augment.cli.parser import INTERRUPTED, TRUST_FLAG, Parser, readable_errors, table_console, writing
from augment.cli.trust import Gate, compose_job, gated, sweep_gate
from augment.support.console import PlainConsole
from augment.support.errors import UserError, suggest
from augment.support.files import require_in, shown, write_atomically
from augment.support.process import end_with_parent
from augment.support.reading import check_folder, contents
from augment.support.signals import StopSignals
from augment.support.text import amount
from augment.support.yaml_files import read_yaml
from trainer.run.config import CONFIG_FILE
from trainer.run.folder import FAILED, SWEEP_FILE, named_folder
from trainer.run.identity import renamed
from trainer.run.jobs import check_jobs
from trainer.run.run_folder import JOB_FILE
from trainer.sweeps.comparison import report_sweep
from trainer.sweeps.launchers import Launcher, parse_launcher
from trainer.sweeps.ledger import Job, plan_jobs, read_ledger, unfinished
from trainer.sweeps.work import NAMED_LATER, NO_FURTHER_JOB, WITH_PARENT, Worker

if TYPE_CHECKING:
    from trainer.sweeps.plan import Plan

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
            config_name,
        )

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
    from trainer.sweeps import search as searching  # Optuna takes a while to import
    from trainer.sweeps.plan import begin

    planned = _plan(request, sweeper, folder)
    launcher.check([planned.base])
    worker.signals.check()
    worker.signals.hold()
    with writing(f"hydra.sweep.dir={shown(folder)}"):
        begin(planned)
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
    parser.add_argument("--config-name", metavar="NAME", help="file of conf/ that the jobs start from")
    parser.add_argument(WITH_PARENT, action="store_true", help=SUPPRESS)  # of the workers that launchers start
    with readable_errors(), StopSignals() as signals, ExitStack() as gate:
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
        request = read_request(folder)
        if action == "show":
            return 0 if report_sweep(folder, table_console(), write=False) else 1
        check_folder(folder)
        later = options.job == [NAMED_LATER]
        jobs = _chosen(folder, () if later else options.job)
        if other := next((token for token in overrides if not key_of(parse(token)).startswith(_OWN)), None):
            raise UserError(
                f"{other}: not allowed here. Allowed: hydra/launcher=..., hydra.launcher.*, hydra.sweeper.*."
            )
        request = replace(request, config_name=options.config_name or request.config_name)
        tokens = normalize(overrides)
        if not options.trust:
            named = bool(options.config_name)
            gate.enter_context(gated(sweep_gate(folder / SWEEP_FILE, request.config_name, named=named)))
            # All of them before the first one runs; what a search composes later is checked then.
            for given in (request.fixed, *(job.overrides for job in jobs)):
                compose_job(given, request.config_name)
        launcher, sweeper = _sections(request, tokens, trust=options.trust)
        # What is asked of the search now, such as more trials, is asked of it from now on.
        kept = [token for token in tokens if key_of(parse(token)).startswith("hydra.sweeper.")]
        searches = is_search(sweeper)
        request = Request.of([*request.fixed, *request.swept, *request.hydra, *kept], request.config_name)
        worker = Worker(PlainConsole(), signals, request.config_name)
        signals.check()
        signals.hold()
        try:
            if action == "work":
                if searches:
                    worker.watch = _plan(request, sweeper, folder, check=False).watch
                with continued(folder):
                    if later:
                        worker.follow(folder, sys.stdin)
                    else:
                        worker.check(unfinished(jobs))
                        worker.work(jobs)
                return 0
            retried = jobs if action == "retry" else []
            if searches:
                if retried:
                    raise UserError(
                        f"retry: {shown(folder)} is a search, in which failed trials count. Allowed: resume with a "
                        "larger hydra.sweeper.n_trials; it also begins jobs again whose folders were deleted."
                    )
                return search(request, sweeper, folder, launcher, worker)
            worker.check([*unfinished(jobs), *(job for job in retried if job.status() == FAILED)])
            for job in retried:
                job.retry()
            return run(folder, jobs, launcher, worker)
        except KeyboardInterrupt as error:
            sys.stdout.write(f"{error}\n")
            return INTERRUPTED


def _chosen(folder: Path, ids: Sequence[str] | None) -> list[Job]:
    known = {job.id: job for job in read_ledger(folder)}
    if (unknown := next((name for name in ids or () if name not in known), None)) is not None:
        raise UserError(f"--job {unknown}: no such job in {folder}.{suggest(unknown, known)}")
    return [known[name] for name in ids or known]


def _sections(request: Request, tokens: Sequence[str], *, trust: bool) -> tuple[Launcher, Mapping[str, Any]]:
    """Return the launcher and Hydra's section `sweeper`: as asked of the sweep, then as the command line says.

    A launcher other than the local one can run commands of its own, so that a stranger's sweep does not choose it.
    """
    named = {key_of(parse(token)) for token in tokens}
    changed = [token for token in request.hydra if "launcher" in token and "hydra/launcher" in named]
    saved = [token for token in request.hydra if token.lstrip("+").startswith(_OWN) and token not in changed]
    own = Request.of(tokens, request.config_name)
    if not trust and (token := next((token for token in saved if "${" in token), None)):
        raise UserError(f"{token}: was asked of the sweep. Allowed: {token} here as well, or {TRUST_FLAG}.")
    # An experiment may choose them, too.
    section = replace(request, swept=(), hydra=(*saved, *own.hydra)).section()
    kind = section["launcher"].get("kind")
    if not trust and kind not in ("local", own.section()["launcher"].get("kind")):
        key = f"hydra/launcher={kind}"
        raise UserError(f"{key}: was asked of the sweep. Allowed: {key} here as well, or {TRUST_FLAG}.")
    return parse_launcher(section["launcher"]), section["sweeper"]


def _plan(request: Request, sweeper: Mapping[str, Any], folder: Path, *, check: bool = True) -> "Plan":
    from trainer.sweeps.plan import Plan

    swept = [*request.params(sweeper), *request.swept]
    return Plan.of(sweeper, request.fixed, swept, folder, request.config_name, check=check)
