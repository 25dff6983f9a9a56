"""The command line: composes, checks every job, and only then lets Hydra make folders and run."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.text import Text

from augment.command import INTERRUPTED, readable_errors, table_console
from augment.compose import (
    CONF,
    TOP,
    compose_jobs,
    group_names,
    key_of,
    normalize,
    parse,
    plain_values,
    refuse_sweeps,
    refuse_words,
    split_sweep,
)
from augment.errors import UserError, told
from augment.registry import load_plugins
from trainer import sweep
from trainer.config import check_config, inner_keys, parse_config
from trainer.overrides import flags_first, with_resumed
from trainer.reference import help_text
from trainer.resume import check_resume
from trainer.run import train

# Of Ctrl-C before there is a run, mostly while the data are listed.
NOTHING_YET = "stopped before the first batch; nothing to go on with"

# Two runs that start in the same second must not share a folder.
OmegaConf.register_new_resolver("run_suffix", lambda: uuid4().hex[:6], use_cache=True, replace=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    # Hydra would print and exit by itself; with this set it raises, and there is one place for messages.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with readable_errors():
        try:
            return _main(list(sys.argv[1:] if arguments is None else arguments))
        except KeyboardInterrupt as error:
            sys.stdout.write(f"{str(error) or NOTHING_YET}\n")
            raise


def _main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        _load_given_plugins(arguments)
        sys.stdout.write(help_text(group_names()))
        return 0
    tokens = flags_first(normalize(with_resumed(arguments)))
    args, unknown = get_args_parser().parse_known_args(tokens)
    if unknown:
        raise UserError(f"{unknown[0]}: unknown flag.{_meant(unknown[0])} Allowed: -m, --cfg job, --help; key=value.")
    refuse_words(args.overrides)
    only_shows = args.cfg or args.info or args.hydra_help or args.shell_completion or args.experimental_rerun
    if not only_shows and not args.config_path:
        _check_all(args.overrides, args.config_name or "config", args.config_dir, multirun=args.multirun)
    sys.argv = [sys.argv[0], *tokens]
    statuses: list[str] = []
    errors: list[Exception] = []
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(
            _job(statuses, errors, args.overrides)
        )()
    except OSError as error:  # not of a job, which raises nothing: of the folder that Hydra makes for it, or a pipe
        if error.filename is None:
            raise
        raise UserError(
            f"{error.filename}: cannot be made: {error.strerror}. Allowed: to start in a folder that can be written to."
        ) from error
    finally:
        finished = [sweep.print_table(folder, table_console()) for folder in sweep.STARTED if folder.is_dir()]
        sweep.STARTED.clear()
    if errors and not args.multirun:
        raise errors[0]
    if "interrupted" in statuses:
        return INTERRUPTED
    return 0 if all(finished) else 1


def _load_given_plugins(arguments: Sequence[str]) -> None:
    """Import the plugins that the command line names, so that --help lists what they declare."""
    for override in (parse(token) for token in arguments if "=" in token and not token.startswith("-")):
        if (key := key_of(override)) in ("plugins", "aug.plugins"):
            load_plugins(tuple(TOP["plugins"].parse(override.value(), key) or ()), key)


def _meant(flag: str) -> str:
    """Return the setting that a flag of its name is meant for, if there is one."""
    name = flag.lstrip("-").split("=")[0].replace("-", "_")
    near = next((path for path in inner_keys() if name in (path, path.split(".")[-1])), None)
    return f" Did you mean '{near}=...'?" if near else ""


def _check_all(tokens: list[str], config_name: str, config_dir: str | None, *, multirun: bool) -> None:
    """Compose and check the run, or every job of a sweep, before anything is written."""
    if not multirun:
        refuse_sweeps(tokens)
    jobs = split_sweep(tokens) if multirun else [tokens]
    for composed in compose_jobs(jobs, config_name=config_name, config_dir=config_dir):
        config = parse_config(composed)
        check_config(config)
        check_resume(config)


def _job(statuses: list[str], errors: list[Exception], given: Sequence[str]) -> "hydra.types.TaskFunction":
    """Return what Hydra runs; it raises nothing but KeyboardInterrupt, so that a sweep survives a failed job.

    Args:
        statuses: takes how each job ended.
        errors: takes what each failed of.
        given: the overrides of the command line, of which a sweep varies some.
    """

    def job(composed: DictConfig) -> None:
        info = HydraConfig.get()
        sweeping = info.mode == RunMode.MULTIRUN
        folder = Path(info.runtime.output_dir)
        console = Console()
        if sweeping:
            varied = [override.lstrip("+") for override in info.overrides.task if override not in given]
            console.rule(Text(f"job {info.job.num}: {' '.join(varied)}"), align="left")
        try:
            config = parse_config(plain_values(composed))
            summary = train(config, folder, console=console, group=folder.parent.name if sweeping else None)
        except Exception as error:
            errors.append(error)
            if sweeping:
                console.print(f"job {info.job.num} failed: {told(error)}", style="red", markup=False)
            return
        statuses.append(summary.status)
        console.print(str(summary), highlight=False, soft_wrap=True)
        if sweeping and summary.status == "interrupted":
            raise KeyboardInterrupt("stopped; no further job was begun")

    return job
