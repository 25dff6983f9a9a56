"""Check and run jobs. A job is one run that the command line, Python or a sweep starts.

All jobs are checked before anything is written.
"""

import gc
import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from augment.cli.overrides import key_of, normalize, parse
from augment.cli.parser import PrintableFormatter
from augment.cli.trust import HOW_TO_TRUST, Saved, Start, UntrustedError
from augment.params import settings
from augment.support.errors import UserError
from augment.support.files import require_in, write_atomically
from augment.support.formatting import as_bytes
from augment.support.nested import section_of
from augment.support.process import launched_ranks
from augment.support.signals import StopSignals
from augment.support.untrusted_files import open_regular
from trainer.loop.checkpoint import LAST
from trainer.run import NOTHING_TO_RESUME
from trainer.run.config.fit import AUTO, Fit
from trainer.run.config.schema import CONFIG_FILE, Config, load_config, parse_config
from trainer.run.failures import folder_error
from trainer.run.folder.locks import owned, reserve
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.run_names import named_run
from trainer.run.folder.summary import OVERRIDES_FILE, Summary

_DEFAULT = Start()
_RUN_KEYS = ("fit.resume", "fit.teacher", "model.weights")  # settings that accept names of runs


class RanksError(UserError):
    """A job needs more processes than were started."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"fit.gpus={count} needs {count} processes. Start a single run with `python -m trainer`, which starts "
            f"them, or use torchrun. In a sweep, set hydra.launcher.gpus_per_job={count} instead. Otherwise set "
            "fit.gpus=1."
        )
        self.count = count


def require_ranks(config: Config) -> None:
    """Raise a RanksError if a job needs more processes than were started."""
    if (config.fit.gpus or 1) > launched_ranks():
        raise RanksError(config.fit.gpus or 1)


def check_jobs(
    jobs: Iterable[Sequence[str]], *, start: Start = _DEFAULT, signals: StopSignals | None = None
) -> list[Config]:
    """Compose and check jobs, each from its normalized overrides.

    Raises:
        UntrustedError: see `augment.cli.trust.Saved`.
        UserError: the first mistake, see `check_configs`.
    """
    configs = [parse_config(start.plain(overrides)) for overrides in jobs]
    check_configs(configs, signals)
    return configs


def check_configs(configs: Sequence[Config], signals: StopSignals | None = None) -> None:
    """Check the configurations of jobs by trying them out.

    Importing PyTorch takes seconds, so the checks that do not need it come first. During the import, a signal ends the
    process at once.

    Raises:
        RanksError: a job needs several processes.
        UserError: the first mistake.
    """
    for config in configs:
        require_ranks(config)
    if "trainer.run.train" not in sys.modules:
        gc.disable()
        with signals.ending(130, f"{NOTHING_TO_RESUME}\n") if signals else nullcontext():
            import trainer.run.train  # noqa: F401
        gc.freeze()  # otherwise Python searches all of PyTorch for garbage again and again
        gc.enable()
    from trainer.run.config.checks import check_config, check_resume

    for config in configs:
        check_config(config)
        check_resume(config)


class _Log(logging.FileHandler):
    """A log file that is never opened through a symbolic link."""

    def _open(self) -> Any:
        descriptor = open_regular(Path(self.baseFilename), flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return open(descriptor, self.mode, encoding=self.encoding, errors=self.errors)


def run_job(config: Config, overrides: Sequence[str], folder: Path, *, again: bool = False, **options: Any) -> Summary:
    """Train in the run's own folder, which also gets a log and the overrides.

    With `again`, the run in the folder is replaced. `options` are further arguments of `trainer.run.train.train`.
    """
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
    root = logging.getLogger()
    handler.setFormatter(PrintableFormatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        with suppress(OSError):  # a full disk has no room for buffered lines
            handler.close()


def resumed_in(tokens: Sequence[str]) -> str | None:
    """Return the last value of `fit.resume` in overrides, or None."""
    values = [parse(token).value() for token in tokens if "=" in token and key_of(parse(token)) == "fit.resume"]
    return None if not values or values[-1] is None else str(values[-1])


def _with_folder(token: str) -> str:
    """Replace the name of a run in an override, such as `fit.resume=last`, with its folder."""
    override = parse(token)
    key, value = key_of(override), override.value()
    if key not in _RUN_KEYS or not isinstance(value, str):
        return token
    folder = named_run(Path(value))
    return token if folder == Path(value) else path_override(key, folder)


def path_override(key: str, path: Path) -> str:
    """Return an override that sets a key to a path, quoted for Hydra."""
    quoted = str(path).replace('"', r"\"")
    return f'++{key}="{quoted}"'


def start_of(
    tokens: Sequence[str], *, trust: bool = False, config_name: str = "config"
) -> tuple[list[str], Start, list[str]]:
    """Find the configuration that the overrides change: the resumed run's, or otherwise the project's.

    Returns:
        The normalized overrides, the configuration that they change, and the overrides of the resumed run that still
        apply.

    Raises:
        UserError: an override is not UTF-8, or the folder does not hold a run.
    """
    for token in tokens:
        if as_bytes(token) != token.encode(errors="replace"):
            raise UserError(
                f"{token}: this name is not UTF-8, so config.yaml cannot hold it. Rename it, or use a symbolic link "
                "with a UTF-8 name. Only images and class folders may have other names."
            )
    given = [*map(_with_folder, normalize(tokens))]
    resume = resumed_in(given)
    if resume in (None, AUTO):
        return given, Start(config_name), []
    folder = Path(str(resume))
    allowed = "the folder of a run with a checkpoint, auto, or null for a new run"
    require_in(folder, LAST, CONFIG_FILE, key="fit.resume=", allowed=allowed)
    given_keys = {key_of(parse(token)) for token in tokens} | {"fit.resume", "hydra"}
    keys = {text: text.lstrip("~").partition("=")[0] for text in RunFolder(folder).overrides}
    before = [text for text, key in keys.items() if not given_keys & {key, key.split(".")[0]}]
    saved = saved_run(folder, trust=trust, fit=("resume", "gpus") if launched_ranks() > 1 else ("resume",))
    own = trust or "fit.gpus" in given_keys
    gpus = None if own else settings(Fit)["gpus"].parse(section_of(saved.values, "fit").get("gpus"), "fit.gpus")
    if gpus is not None and gpus > (os.cpu_count() or 1):
        raise UntrustedError(
            f"fit.gpus: {gpus} in {saved.where} is not used, because a run folder may not start more processes than "
            f"this machine has cores. Pass fit.gpus={gpus} {HOW_TO_TRUST}."
        )
    return given, Start(config_name, saved), before


def saved_run(folder: Path, *, trust: bool, fit: Collection[str] = ("resume",)) -> Saved:
    """Return the configuration of a run with a checkpoint, without the named settings of the section `fit`."""
    values = load_config(folder)
    kept = {name: value for name, value in section_of(values, "fit").items() if name not in fit}
    return Saved({**values, "fit": kept}, folder / CONFIG_FILE, trust=trust, starts=False)
