"""`python -m trainer sweep resume FOLDER`: resume a sweep, retry its failed jobs, or show its tables."""

import sys
from argparse import SUPPRESS
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from augment.cli.overrides import key_of, normalize, parse
from augment.cli.parser import INTERRUPTED, TRUST_FLAG, USAGE, Parser, readable_errors, table_console
from augment.cli.trust import compose_job, gated, sweep_gate
from augment.support.console import PlainConsole
from augment.support.errors import UserError, suggest
from augment.support.files import shown
from augment.support.process import end_with_parent
from augment.support.reading import check_folder
from augment.support.signals import StopSignals
from augment.support.text import amount
from trainer.loop.callback import Callback
from trainer.run.folder import SWEEP_FILE
from trainer.run.summary import FAILED
from trainer.sweeps.launchers import Launcher, parse_launcher
from trainer.sweeps.ledger import Job, read_ledger, unfinished
from trainer.sweeps.start import Request, continued, is_search, read_request, run, search
from trainer.sweeps.table import report_sweep
from trainer.sweeps.work import NAMED_LATER, WITH_PARENT, Worker

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
        if not paths:
            sys.stdout.write(parser.format_help())
            return USAGE
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
        if kept and not is_search(sweeper):
            raise UserError(
                f"{kept[0].lstrip('+')}: {shown(folder)} is a plain sweep. Allowed: the folder of a search."
            )
        request = Request.of([*request.fixed, *request.swept, *request.hydra, *kept], request.config_name)
        worker = Worker(PlainConsole(), signals, request.config_name)
        signals.check()
        signals.hold()
        try:
            if action == "work":
                worker.watch = _watch(request, sweeper, folder)
                with continued(folder):
                    if later:
                        worker.follow(folder, sys.stdin)
                    else:
                        worker.check(unfinished(jobs))
                        worker.work(jobs)
                return 0
            retried = jobs if action == "retry" else []
            if is_search(sweeper):
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
    jobs = read_ledger(folder)
    known = {job.id: job for job in jobs}
    for name in ids or ():
        if name not in known:
            raise UserError(f"--job {name}: no such job in {folder}.{suggest(name, known)}")
    return jobs if not ids else [known[name] for name in ids]


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


def _watch(request: Request, sweeper: Mapping[str, Any], folder: Path) -> Callable[[Job], Sequence[Callback]]:
    if not is_search(sweeper):
        return lambda job: ()
    from trainer.sweeps.plan import Plan  # Optuna takes a while to import
    from trainer.sweeps.search import watch_trials

    swept = [*request.params(sweeper), *request.swept]
    return watch_trials(Plan.of(sweeper, request.fixed, swept, folder, request.config_name, check=False))
