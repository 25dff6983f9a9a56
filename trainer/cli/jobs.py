"""Jobs, from the command line or from Python: composed and checked before anything is written."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from augment.cli.compose import compose_jobs
from augment.cli.overrides import normalize, refuse_sweeps, refuse_words
from augment.cli.trust import TRUST_FLAG
from augment.support.errors import UserError
from augment.support.files import write_atomically
from trainer.cli.auto import is_auto, resume_auto
from trainer.run.overrides import OVERRIDES_FILE, with_resumed
from trainer.run import train as run
from trainer.run.check import check_config
from trainer.run.config import Config, new_folder, parse_config
from trainer.run.folder import owned
from trainer.run.resume import check_resume
from trainer.run.summary import Summary


def check_jobs(jobs: Iterable[Sequence[str]], *, config_name: str = "config") -> list[Config]:
    """Compose and check jobs, each from its normalized overrides; see `augment.cli.compose.compose_jobs`.

    Raises:
        UserError: the first mistake.
    """
    configs = []
    for composed in compose_jobs(jobs, config_name=config_name):
        config = parse_config(composed)
        check_config(config)
        check_resume(config)
        configs.append(config)
    return configs


def train(*overrides: str, folder: Path | str | None = None, trust: bool = False) -> Summary:
    """Train as `python -m trainer` does: `train("+aug=imagenette", "fit.epochs=2")`.

    Args:
        overrides: overrides as on the command line, without flags and sweeps.
        folder: the run's folder; None: a new one in outputs/.
        trust: whether the run that fit.resume names may name code to import, see `augment.cli.trust`.

    Returns:
        How the run ended; with `fit.resume=auto`, perhaps earlier.

    Raises:
        UserError: a mistake in the overrides, found before anything is written, or one that ends the run.
    """
    try:
        refuse_words(overrides)
        tokens = normalize(with_resumed([*overrides, *([TRUST_FLAG] if trust else [])]))
        refuse_sweeps(tokens)
        if is_auto(tokens):
            tokens, done = resume_auto(tokens, None if folder is None else Path(folder))
            if done is not None:
                return done
        (config,) = check_jobs([tokens])
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(str(error).strip()) from error
    path = new_folder() if folder is None else Path(folder)
    with owned(path, config.fit.resume):
        write_atomically(path / OVERRIDES_FILE, OmegaConf.to_yaml(tokens))
        with _logged(path / "trainer.log"):
            return run.train(config, path)


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Write the log to a file, as Hydra does for the command line."""
    root, handler = logging.getLogger(), logging.FileHandler(file, encoding="utf-8", errors="surrogateescape")
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # as in `trainer.cli.main`
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
