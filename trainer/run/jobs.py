"""Jobs, from the command line, from Python or of a sweep: checked before anything is written, then run in a folder."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from augment.cli.compose import compose_jobs
from augment.cli.trust import check_job
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.process import launched
from augment.support.signals import StopSignals
from trainer.loop.callback import Callback
from trainer.run import NOTHING_TO_RESUME
from trainer.run.config import Config, parse_config
from trainer.run.folder import owned, reserve
from trainer.run.overrides import OVERRIDES_FILE
from trainer.run.summary import Summary

LOG_FILE = "trainer.log"


class RanksError(UserError):
    """A job needs several processes, and this one was started alone.

    Attributes:
        count: number of processes.
    """

    def __init__(self, count: int) -> None:
        super().__init__(
            f"fit.gpus: {count}, but this process trains alone. Allowed: null or 1; or a single run of "
            "`python -m trainer`, which starts the others; or torchrun."
        )
        self.count = count


def require_ranks(config: Config) -> None:
    """Check that as many processes were started as a job needs.

    Raises:
        RanksError: it needs more.
    """
    if (config.fit.gpus or 1) > launched():
        raise RanksError(config.fit.gpus or 1)


def check_jobs(
    jobs: Iterable[Sequence[str]], *, config_name: str = "config", signals: StopSignals | None = None
) -> list[Config]:
    """Compose and check jobs, each from its normalized overrides; see `augment.cli.compose.compose_jobs`.

    What is wrong without a look at data and model, such as a misspelled key, is found before PyTorch is imported.

    Args:
        jobs: the overrides of each.
        config_name: file of conf/ to start from.
        signals: those of the command line, which end the process at once while modules are imported.

    Raises:
        RanksError: a job needs several processes.
        UntrustedError: see `augment.cli.trust.gated`.
        UserError: the first mistake.
    """
    jobs = list(jobs)
    for overrides in jobs:
        check_job(overrides, config_name)
    configs = [parse_config(composed) for composed in compose_jobs(jobs, config_name=config_name)]
    for config in configs:
        require_ranks(config)
    import_run(signals)
    from trainer.run.check import check_config
    from trainer.run.resume import check_resume

    for config in configs:
        check_config(config)
        check_resume(config)
    return configs


def import_run(signals: StopSignals | None = None) -> None:
    """Import all that a run needs.

    Args:
        signals: those of the command line, which end the process at once meanwhile.
    """
    with signals.ending(130, f"{NOTHING_TO_RESUME}\n") if signals else nullcontext():
        import trainer.run.check
        import trainer.run.train  # noqa: F401


def run_job(
    config: Config,
    overrides: Sequence[str],
    folder: Path,
    *,
    again: bool = False,
    console: Console | None = None,
    group: str | None = None,
    varied: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    plan: bool = True,
) -> Summary:
    """Train in a folder as Hydra would run it: with a log, and with the overrides written down.

    Args:
        config: the checked configuration.
        overrides: its overrides.
        folder: the run's own folder.
        again: whether the folder may hold a run that starts again from the beginning.
        console: see `trainer.run.train.train`, as for the rest.
        group: see there.
        varied: see there.
        callbacks: see there.
        plan: see there.

    Raises:
        UserError: the folder is not free, or something ended the run.
    """
    from trainer.run.train import train

    reserve(folder, config.fit.resume, again=again)
    with owned(folder, config.fit.resume):
        write_atomically(folder / OVERRIDES_FILE, OmegaConf.to_yaml(list(overrides)))
        with _logged(folder / LOG_FILE):
            return train(config, folder, console=console, group=group, varied=varied, callbacks=callbacks, plan=plan)


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Write the log to a file, as Hydra does for the command line."""
    root, handler = logging.getLogger(), logging.FileHandler(file, encoding="utf-8", errors="surrogateescape")
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
        handler.close()
