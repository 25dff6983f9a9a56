"""Jobs, from the command line, from Python or of a sweep: checked before anything is written, then run in a folder."""

import gc
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from augment.cli.compose import compose_run
from augment.cli.overrides import is_override, key_of, normalize, parse
from augment.cli.trust import Gate, compose_job
from augment.support.errors import UserError
from augment.support.files import require_in, write_atomically
from augment.support.process import launched
from augment.support.reading import open_regular
from augment.support.signals import StopSignals
from augment.support.text import as_bytes
from augment.support.yaml_files import read_list
from trainer.loop.checkpoint import LAST
from trainer.run import NOTHING_TO_RESUME
from trainer.run.config import Config, parse_config
from trainer.run.failures import folder_error
from trainer.run.folder import OVERRIDES_FILE, Summary, owned, reserve
from trainer.run.identity import renamed


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

    Signals of the command line end the process at once while modules are imported.

    Raises:
        RanksError: a job needs several processes.
        UserError: it cannot run.
    """
    for config in configs:
        require_ranks(config)
    if "trainer.run.train" not in sys.modules:
        gc.disable()
        with signals.ending(130, f"{NOTHING_TO_RESUME}\n") if signals else nullcontext():
            import trainer.run.train  # noqa: F401
        gc.freeze()  # or Python looks for garbage among all of PyTorch, again and again
        gc.enable()
    from trainer.run.check import check_config, check_resume

    for config in configs:
        check_config(config)
        check_resume(config)


class _Log(logging.FileHandler):
    """A log that follows no link."""

    def _open(self) -> Any:
        descriptor = open_regular(Path(self.baseFilename), flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return open(descriptor, self.mode, encoding=self.encoding, errors=self.errors)


def run_job(config: Config, overrides: Sequence[str], folder: Path, *, again: bool = False, **options: Any) -> Summary:
    """Train in a folder of its own, with a log and the overrides; `again`: in place of a run that the folder holds."""
    from trainer.run.train import train

    reserve(folder, config.fit.resume, again=again)
    with owned(folder, config.fit.resume):
        try:
            write_atomically(folder / OVERRIDES_FILE, OmegaConf.to_yaml(list(overrides)), folder=folder)
            log = _Log(folder / "trainer.log", encoding="utf-8", errors="surrogateescape")
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
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        with suppress(OSError):  # what is buffered finds no room on a full disk
            handler.close()


# Value of fit.resume, see `trainer.cli.jobs`.
AUTO = "auto"


def resumed_in(tokens: Sequence[str]) -> str | None:
    """Return the value of `fit.resume` among overrides, the last one of several; None: there is none."""
    values = [parse(token).value() for token in tokens if "=" in token and key_of(parse(token)) == "fit.resume"]
    return None if not values or values[-1] is None else str(values[-1])


def with_resumed(
    tokens: Sequence[str], *, trust: bool = False, config_name: str = "config"
) -> tuple[list[str], Gate | None]:
    """Put the overrides of the run that `fit.resume` names before those of the command line, which win.

    Returns:
        All overrides, normalized, and a gate for the jobs that they make if they are not trusted.

    Raises:
        UserError: an override is not UTF-8, the folder is not that of a run, or its overrides need `trust`.
    """
    for token in tokens:
        if as_bytes(token) != token.encode(errors="replace"):
            raise UserError(
                f"{token}: is not UTF-8, so config.yaml could not hold it. Allowed: names in UTF-8, also for a "
                "symbolic link; only images and class folders may have other names."
            )
    resume, gate = resumed_in(tokens), None
    saved: list[str] = []
    if resume not in (None, AUTO):
        folder = Path(str(resume))
        allowed = "the folder of a run that saved a checkpoint"
        require_in(folder, LAST, str(OVERRIDES_FILE), key="fit.resume=", allowed=allowed)
        file = folder / OVERRIDES_FILE
        given = {key_of(parse(token)) for token in tokens}
        saved = [token for token in _saved(file) if key_of(parse(token)) not in given]
        if not trust:
            gate = Gate(file, partial(_named, tokens, config_name), ("data", "callbacks"), every=False)  # has weights
            gate.check_overrides(saved)
    return normalize([*saved, *tokens]), gate


def _named(tokens: Sequence[str], config_name: str) -> dict[str, Any]:
    """Return what the command line alone makes, with what it deletes and without what it varies."""
    kept = [token for token in tokens if token[0] != "~" and not parse(token).is_sweep_override()]
    return compose_run(normalize(kept), config_name=config_name).plain


def _saved(file: Path) -> list[str]:
    """Return the overrides of a run, without Hydra's own: where and how a resumed run runs is decided again."""
    saved = []
    for token in renamed(map(str, read_list(file, file.parents[1]))):
        if not is_override(token):
            raise UserError(f"{file}: {token!r} is not an override. Allowed: key=value, ~key.")
        parsed = parse(token)
        if not any(re.match(r"hydra\b", name or "") for name in (key_of(parsed), parsed.package)):
            saved.append(token)
    return saved
