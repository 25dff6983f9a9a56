"""The command line: composes, checks every job, and only then lets Hydra make folders and run."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from augment.errors import UserError
from trainer import sweep
from trainer.config import Config, check_config, parse_config
from trainer.overrides import CONF, check_groups, normalize, parse, with_resumed
from trainer.reference import help_text
from trainer.run import check_resume, train

USAGE = 2  # exit code of a user's mistake
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it

# Two runs that start in the same second must not share a folder.
OmegaConf.register_new_resolver("run_suffix", lambda: uuid4().hex[:6], use_cache=True, replace=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    # Hydra would print and exit by itself; with this set it raises, and there is one place for messages.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with readable_errors():
            return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a user's mistake into one message and exit code 2."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        sys.stderr.write(f"error: {str(error).strip()}\n")
        raise SystemExit(USAGE) from None


def _main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(help_text(_groups()))
        return 0
    groups = _groups()
    tokens = normalize(with_resumed(arguments), groups=groups, defaults=_default_groups())
    args = get_args_parser().parse_args(tokens)
    only_shows = args.cfg or args.info or args.hydra_help or args.shell_completion or args.experimental_rerun
    if not only_shows and not args.config_path:
        _check_all(args.overrides, args.config_name or "config", args.config_dir, groups, multirun=args.multirun)
    sys.argv = [sys.argv[0], *tokens]
    statuses: list[str] = []
    errors: list[Exception] = []
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_job(statuses, errors))()
    finally:
        finished = [sweep.print_table(folder, Console()) for folder in sweep.STARTED if folder.is_dir()]
        sweep.STARTED.clear()
    if errors and not args.multirun:
        raise errors[0]
    if "interrupted" in statuses:
        return INTERRUPTED
    return 0 if all(finished) else 1


def _check_all(
    tokens: list[str], config_name: str, config_dir: str | None, groups: Sequence[str], *, multirun: bool
) -> None:
    """Compose and check the run, or every job of a sweep, before anything is written."""
    overrides = [parse(token) for token in tokens]
    jobs = BasicSweeper.split_arguments(overrides, None)[0] if multirun else [tokens]
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        for job in jobs:
            check_groups([parse(token) for token in job if not config_dir], groups)
            composed = hydra.compose(config_name, [*search, *job])
            config = _parse(composed)
            check_config(config)
            check_resume(config)


def _parse(composed: DictConfig) -> Config:
    plain = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(plain, dict)
    return parse_config({str(key): value for key, value in plain.items()})


def _job(statuses: list[str], errors: list[Exception]) -> "hydra.types.TaskFunction":
    """Return what Hydra runs; it raises nothing but KeyboardInterrupt, so that a sweep survives a failed job."""

    def job(composed: DictConfig) -> None:
        info = HydraConfig.get()
        sweeping = info.mode == RunMode.MULTIRUN
        folder = Path(info.runtime.output_dir)
        console = Console()
        if sweeping:
            console.rule(f"job {info.job.num}: {info.job.override_dirname.replace('++', '')}", align="left")
        try:
            summary = train(_parse(composed), folder, console=console, group=folder.parent.name if sweeping else None)
        except Exception as error:
            errors.append(error)
            if sweeping:
                console.print(f"job {info.job.num} failed: {type(error).__name__}: {error}", style="red", markup=False)
            return
        statuses.append(summary.status)
        console.print(str(summary), highlight=False, soft_wrap=True)
        if sweeping and summary.status == "interrupted":
            raise KeyboardInterrupt

    return job


def _groups() -> list[str]:
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())


def _default_groups() -> list[str]:
    defaults = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert isinstance(defaults, dict)
    return [name for entry in defaults["defaults"] if isinstance(entry, dict) for name in entry]
