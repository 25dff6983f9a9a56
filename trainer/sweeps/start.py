"""Start a sweep: from its command to planned jobs, which a launcher runs, and to the tables at the end."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from augment.cli.compose import compose_hydra, split_sweep
from augment.cli.overrides import key_of, parse
from augment.cli.parser import table_console
from augment.support.errors import UserError, first_line
from augment.support.files import shown, write_atomically
from augment.support.signals import StopSignals
from augment.support.text import amount
from augment.support.yaml_files import read_yaml
from trainer.run.config import Config
from trainer.run.jobs import check_jobs
from trainer.sweeps.launch import Launcher, parse_launcher
from trainer.sweeps.ledger import SWEEP_FILE, Job, job_id, plan, unfinished
from trainer.sweeps.runs import FAILED, FINISHED
from trainer.sweeps.table import print_table
from trainer.sweeps.work import Worker

_HYDRA = re.compile(r"hydra\b")
_PLUGINS = re.compile(r"hydra\.(launcher|sweeper)\.")


@dataclass(frozen=True)
class Request:
    """What a command asks of a sweep.

    Attributes:
        fixed: normalized overrides with one value, without Hydra's own.
        swept: those with several values.
        hydra: Hydra's own, such as `hydra.sweep.dir`.
        config_name: file of conf/ to start from.
    """

    fixed: tuple[str, ...]
    swept: tuple[str, ...]
    hydra: tuple[str, ...]
    config_name: str = "config"

    @classmethod
    def of(cls, tokens: Sequence[str], config_name: str = "config") -> "Request":
        """Return the request of normalized overrides."""
        sorted_out: dict[str, list[str]] = {"fixed": [], "swept": [], "hydra": []}
        for token in tokens:
            override = parse(token)
            if _HYDRA.match(key_of(override)):
                sorted_out["hydra"].append(_of_hydra(token, sweeps=override.is_sweep_override()))
            else:
                sorted_out["swept" if override.is_sweep_override() else "fixed"].append(token)
        return cls(**{name: tuple(values) for name, values in sorted_out.items()}, config_name=config_name)

    def section(self) -> dict[str, Any]:
        """Return Hydra's own section of the configuration as plain values, those of the folder resolved."""
        composed = compose_hydra([*self.fixed, *self.hydra], config_name=self.config_name)
        parts = {name: OmegaConf.to_container(composed[name], resolve=False) for name in ("launcher", "sweeper")}
        return {"folder": Path(composed.sweep.dir), **parts}


def sweep(request: Request, signals: StopSignals) -> int:
    """Check all jobs, then run those of them that have not ended; return the exit code.

    Raises:
        UserError: a mistake, found before anything is written.
    """
    section = request.section()
    folder, launcher = section["folder"], parse_launcher(section["launcher"])
    tokens = [*_params(section["sweeper"], request), *request.fixed, *request.swept]
    overrides = split_sweep(tokens)
    configs = check_jobs(overrides, config_name=request.config_name)
    signals.check()
    signals.hold()  # from here on there are folders, whose runs handle them
    try:
        jobs = plan(folder, zip(configs, overrides, strict=True), request.fixed)
        write_request(folder, request)
    except OSError as error:
        raise UserError(
            f"hydra.sweep.dir={shown(folder)}: cannot be written: {error.strerror}. Allowed: a folder that is writable."
        ) from error
    known = {job_id(config): config for config in configs}
    return run(folder, jobs, launcher, signals, configs=known, config_name=request.config_name)


def run(
    folder: Path,
    jobs: Sequence[Job],
    launcher: Launcher,
    signals: StopSignals,
    *,
    configs: Mapping[str, Config] | None = None,
    config_name: str = "config",
) -> int:
    """Run the jobs of a sweep that have not ended; return the exit code.

    Args:
        folder: the sweep's folder.
        jobs: its jobs.
        launcher: runs them.
        signals: signals that end the sweep.
        configs: configurations that were checked already, by job.
        config_name: file of conf/ that the jobs start from.
    """
    console = Console()
    left = unfinished(jobs)
    if done := len(jobs) - len(left):
        text = f"{amount(len(jobs), 'job')}, of which {done:,} ended before"
        console.print(text, highlight=False)
    try:
        if left:
            launcher.launch(left, Worker(console, signals, config_name, configs))
    except KeyboardInterrupt as error:
        print_table(folder, table_console())
        continues = f"python -m trainer sweep resume {shown(folder)} continues it"
        raise KeyboardInterrupt(f"{error}; {continues}") from None
    print_table(folder, table_console())
    failed = [job for job in jobs if job.status() == FAILED]
    if failed:
        again = f"python -m trainer sweep retry {shown(folder)}"
        console.print(f"{amount(len(failed), 'job')} failed; {again} runs them again", highlight=False, soft_wrap=True)
    return 0 if all(job.status() == FINISHED for job in jobs) else 1


def write_request(folder: Path, request: Request) -> None:
    """Record what was asked of a sweep, for `sweep resume`."""
    plain = {"command": [*request.fixed, *request.swept, *request.hydra], "config_name": request.config_name}
    write_atomically(folder / SWEEP_FILE, OmegaConf.to_yaml(plain))


def read_request(folder: Path) -> Request:
    """Return what was asked of a sweep.

    Raises:
        UserError: the folder is not that of a sweep.
    """
    file = folder / SWEEP_FILE
    if not file.is_file():
        raise UserError(f"{folder}: no {SWEEP_FILE} in it. Allowed: the folder of a sweep.")
    found = read_yaml(file)
    try:
        assert isinstance(found, dict)
        return Request.of([str(token) for token in found["command"]], str(found.get("config_name", "config")))
    except (AssertionError, LookupError, TypeError) as error:
        raise UserError(f"{file}: not the command of a sweep ({first_line(error)}).") from error


def _of_hydra(token: str, *, sweeps: bool) -> str:
    """Return one of Hydra's own overrides as Hydra expects it: it adds our settings, and `gpus=0,1` is one value."""
    bare = token.lstrip("+")
    if not _PLUGINS.match(bare):
        return token
    key, _, value = bare.partition("=")
    return f"++{key}='{value}'" if sweeps else f"++{bare}"


def _params(sweeper: Mapping[str, Any], request: Request) -> list[str]:
    """Return what `hydra.sweeper.params` of a configuration varies, unless the command line names the same key."""
    named = {key_of(parse(token)) for token in (*request.fixed, *request.swept)}
    params = sweeper.get("params") or {}
    return [f"++{key}={value}" for key, value in params.items() if str(key) not in named]
