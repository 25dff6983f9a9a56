"""Compose single runs, find the run that `fit.resume=auto` continues, and train from Python.

With `auto`, the same command starts a run, resumes it, and does nothing once the run has finished.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from augment.cli.overrides import key_of, parse, reject_keywords, reject_sweeps, reject_words
from augment.cli.trust import Start
from augment.data.sources import LOADED
from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.nested import section_of
from augment.support.user_code import public
from trainer.loop.checkpoint import LAST
from trainer.run import ranks
from trainer.run.config.equality import identity, identity_text
from trainer.run.config.fit import AUTO
from trainer.run.config.schema import CONFIG_FILE, Config, inner_keys, load_config, new_folder, parse_config
from trainer.run.folder.locks import named_folder, user_of
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import FINISHED, Summary
from trainer.run.jobs import check_configs, path_override, resumed_in, run_job, start_of

_DEFAULT = Start()


@dataclass(frozen=True)
class Prepared:
    """A single run that has been composed, but not checked."""

    config: Config
    tokens: Sequence[str]  # the run's overrides, except Hydra's own
    template: DictConfig  # Hydra's section `run`, whose `dir` is the run's folder
    done: Summary | None = None  # the summary of the run, if it has already finished
    again: bool = False  # whether its folder may hold a run without a checkpoint, which starts from the beginning


def prepare(
    tokens: Sequence[str], start: Start = _DEFAULT, before: Sequence[str] = (), folder: Path | None = None
) -> Prepared:
    """Compose a run from its normalized overrides, and find the run that `fit.resume=auto` continues.

    `auto` looks at runs with an equal configuration (see `trainer.run.config.equality`), newest first. A finished
    run is not repeated. A run with a checkpoint is resumed. A run without one is ignored. If the command line names the
    run's folder, `auto` looks only there.

    Args:
        tokens: the overrides.
        start: the configuration that the overrides apply to.
        before: overrides of the resumed run, which are recorded with the new ones.
        folder: the run's folder, if Python code names it.

    Raises:
        UserError: a mistake in the configuration. With `auto`, also if the run is in progress, or if the folder holds
            a run with a different configuration.
    """
    plain, template = start.plain(tokens), start.hydra(tokens).run
    own = [*before, *(token for token in tokens if not key_of(parse(token)).startswith("hydra"))]
    if resumed_in(tokens) != AUTO:
        return Prepared(parse_config(plain), own, template)
    own = [token for token in own if key_of(parse(token)) != "fit.resume"]
    plain["fit"] = {**section_of(plain, "fit"), "resume": None}
    key, fixed, pattern = "folder", folder, Path()
    if folder is None:
        key, (fixed, pattern) = "hydra.run.dir", _folder_or_pattern(template)
    run, done = _find_resumable(config := parse_config(plain), key, fixed, pattern)
    if run is not None:
        own.append(path_override("fit.resume", run))
        plain["fit"]["resume"] = str(run)
        config = parse_config(plain)
    return Prepared(config, own, template, done, again=fixed is not None)


def _find_resumable(config: Config, key: str, fixed: Path | None, pattern: Path) -> tuple[Path | None, Summary | None]:
    """Return the folder of a run to resume, or the summary of a finished run. Both are None for a new run.

    Args:
        config: the configuration of the run.
        key: the setting that names the run's folder, for messages.
        fixed: the run's folder if its name is known.
        pattern: otherwise, a pattern that all possible folders match.
    """
    for run in _same_runs(config, pattern) if fixed is None else [fixed]:
        if user := user_of(run):
            raise UserError(
                f"fit.resume=auto: a run with this configuration is in progress in {shown(run)} ({user}). Wait until "
                "it has ended, or leave out fit.resume to start another run."
            )
        if fixed is not None and (run / CONFIG_FILE).is_file() and not _is_same(config, run):
            raise UserError(
                f"{key}={shown(run)}: this folder holds a run with a different configuration. Use another folder. "
                f"To continue that run with this configuration, replace auto with fit.resume={shown(run)}."
            )
        if (ending := RunFolder(run).summary).status == FINISHED:
            return None, ending
        if (run / LAST).is_file():
            return run, None
    return None, None


def _folder_or_pattern(template: DictConfig) -> tuple[Path | None, Path]:
    """Return the run's folder if its name is fixed, otherwise None and a pattern that all possible folders match."""
    unresolved: Any = OmegaConf.to_container(template)
    if "${now:" not in unresolved["dir"] and "${run_suffix:" not in unresolved["dir"]:
        return named_folder(template.dir, "hydra.run.dir"), Path()
    return None, Path(*("*" if "${" in part else part for part in Path(unresolved["dir"]).parts))


def _same_runs(config: Config, pattern: Path) -> Iterator[Path]:
    """Yield the runs with an equal configuration in folders that match a pattern, newest first."""
    top = Path(pattern.anchor)
    files = top.glob(str((pattern / CONFIG_FILE).relative_to(pattern.anchor)))
    for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file), reverse=True):
        if _is_same(config, file.parent):
            yield file.parent


def _is_same(config: Config, run: Path) -> bool:
    try:
        saved = load_config(run)
        size = section_of(saved, "fit").get("batch_size")
        if config.fit.batch_size == AUTO and isinstance(size, int):
            config = config.sized(size, "as in that run")
        return identity_text(identity(saved)) == identity_text(identity(config.resolved))
    except UserError:  # the configuration cannot be read
        return False


@public
def train(*overrides: str, folder: Path | str | None = None, trust: bool = False, **misspelled: object) -> Summary:
    """Train as `python -m trainer` does: `train("aug=imagenette", "fit.epochs=2")`.

    In a program that torchrun started, all ranks call this function and train together with the overrides of rank 0.
    If the fit fails, your program must exit, because other ranks may wait for it.

    Args:
        overrides: overrides as on the command line, without flags and sweeps.
        folder: the run's folder. Default: a new one in outputs/.
        trust: whether the run that fit.resume names may name code to import, see `augment.cli.trust`.
        misspelled: keyword arguments raise an error that suggests the right override.

    Returns:
        How the run ended. With `fit.resume=auto`, it may have finished earlier.

    Raises:
        UserError: a mistake in the overrides, found before anything is written, or a failure that the user can fix.
    """
    reject_keywords(misspelled, inner_keys())
    LOADED.clear()
    path = None if folder is None else Path(folder)
    if ranks.follows():
        ranks.follow(leaves=False)
        summary: Summary | None = ranks.receive()
        if summary is None:
            raise UserError("rank 0 did not train. Its message states the reason.")
        return summary
    try:
        reject_words(overrides)
        tokens, start, before = start_of(overrides, trust=trust)
        reject_sweeps(tokens)
        for key in (key_of(parse(token)) for token in tokens):
            if key.startswith("hydra") and key != "hydra.searchpath":
                raise UserError(f"{key}: has no effect in Python. To choose the folder of the run, pass folder=.")
        run = prepare(tokens, start, before, folder=path)
        if run.done is not None:
            ranks.share(None)  # the other ranks train nothing
            return ranks.share(run.done)
        check_configs([run.config])
    except BaseException:
        ranks.share(None)  # instead of the configuration
        ranks.share(None)  # instead of the summary
        raise
    ranks.share(run.config.resolved)
    return ranks.share(run_job(run.config, run.tokens, path or new_folder(), again=run.again))
