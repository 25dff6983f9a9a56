"""Jobs, from the command line, from Python or of a sweep: checked before anything is written, then run in a folder."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from augment.cli.trust import compose_job
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.process import launched
from augment.support.signals import StopSignals
from trainer.run import NOTHING_TO_RESUME
from trainer.run.config import Config, parse_config
from trainer.run.failures import folder_error
from trainer.run.folder import owned, reserve
from trainer.run.overrides import OVERRIDES_FILE
from trainer.run.summary import Summary

LOG_FILE = "trainer.log"


class RanksError(UserError):
    """A job needs several processes, and this one was started alone."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"fit.gpus: {count}, but this process trains alone. Allowed: null or 1; or a single run of "
            "`python -m trainer`, which starts the others; or torchrun."
        )
        self.count = count


def require_ranks(config: Config) -> None:
    """Check that as many processes were started as a job needs."""
    if (config.fit.gpus or 1) > launched():
        raise RanksError(config.fit.gpus or 1)


def check_jobs(
    jobs: Iterable[Sequence[str]], *, config_name: str = "config", signals: StopSignals | None = None
) -> list[Config]:
    """Compose and check jobs, each from its normalized overrides.

    Raises:
        UntrustedError: see `augment.cli.trust.compose_job`.
        UserError: the first mistake; see `check_configs`.
    """
    configs = [parse_config(compose_job(overrides, config_name).plain) for overrides in jobs]
    check_configs(configs, signals)
    return configs


def check_configs(configs: Sequence[Config], signals: StopSignals | None = None) -> None:
    """Check the configurations of jobs by trying them out; the first mistake counts.

    What is wrong without a look at data and model, such as a misspelled key, is known before PyTorch is imported here.

    Args:
        configs: the configurations.
        signals: those of the command line, which end the process at once while modules are imported.

    Raises:
        RanksError: a job needs several processes.
        UserError: it cannot run.
    """
    for config in configs:
        require_ranks(config)
    with signals.ending(130, f"{NOTHING_TO_RESUME}\n") if signals else nullcontext():
        import trainer.run.train  # noqa: F401
        from trainer.run.check import check_config
        from trainer.run.resume import check_resume
    for config in configs:
        check_config(config)
        check_resume(config)


def run_job(config: Config, overrides: Sequence[str], folder: Path, *, again: bool = False, **options: Any) -> Summary:
    """Train in a folder of its own, with a log and the overrides; `again`: in place of a run that the folder holds."""
    from trainer.run.train import train

    reserve(folder, config.fit.resume, again=again)
    with owned(folder, config.fit.resume):
        try:
            write_atomically(folder / OVERRIDES_FILE, OmegaConf.to_yaml(list(overrides)))
            log = logging.FileHandler(folder / LOG_FILE, encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise folder_error(error, folder) or error from error
        with _logged(log):
            return train(config, folder, **options)


@contextmanager
def _logged(handler: logging.Handler) -> Iterator[None]:
    """Write the log to a file."""
    root = logging.getLogger()
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # a log on a full disk is no reason for tracebacks
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        root.setLevel(level)
        root.removeHandler(handler)
        with suppress(OSError):  # what is buffered finds no room on a full disk
            handler.close()
