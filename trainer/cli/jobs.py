"""Single runs: composed once, also where `fit.resume=auto` stands for a run that began before; and `trainer.train`.

With `auto`, one command line starts a run, resumes it, and leaves it alone once it has finished.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from augment.cli.overrides import key_of, parse, refuse_keywords, refuse_sweeps, refuse_words
from augment.cli.trust import Start
from augment.data.sources import LOADED
from augment.support.errors import UserError
from augment.support.files import shown
from augment.support.nested import section_of
from augment.support.user_code import public
from trainer.cli import ranks
from trainer.loop.checkpoint import LAST
from trainer.run.config.equality import identity, identity_text
from trainer.run.config.schema import CONFIG_FILE, Config, inner_keys, load_config, new_folder, parse_config
from trainer.run.folder.ownership import FINISHED, Summary, named_folder, reserve, user_of
from trainer.run.folder.reader import RunFolder
from trainer.run.jobs import AUTO, check_configs, resumed_in, run_job, start_of

_DEFAULT = Start()


@dataclass(frozen=True)
class Prepared:
    """A single run that has been composed."""

    config: Config  # not checked yet
    tokens: Sequence[str]  # its overrides, without those of Hydra itself
    template: DictConfig  # Hydra's section `run`, whose `dir` is the run's folder
    done: Summary | None = None  # how it has ended if it is not repeated


def prepare(
    tokens: Sequence[str], start: Start = _DEFAULT, before: Sequence[str] = (), folder: Path | None = None
) -> Prepared:
    """Compose a run from its normalized overrides, once, and find the run that `fit.resume=auto` stands for.

    What else it was started with, `before`, is kept for people.

    Runs of the same configuration are those of the same `trainer.run.config.equality.identity`. The newest decides: one
    that finished is not repeated, one that left a checkpoint is resumed, one without any is ignored. If the command
    line names the folder of the run, only this one is looked at, and the run continues or starts again there.

    Raises:
        UserError: a mistake in the configuration; or with `auto`, the run is in progress, or the folder holds a run of
            another configuration.
    """
    plain, template = start.plain(tokens), start.hydra(tokens).run
    own = [*before, *(token for token in tokens if not key_of(parse(token)).startswith("hydra"))]
    if resumed_in(tokens) != AUTO:
        return Prepared(parse_config(plain), own, template)
    own = [token for token in own if key_of(parse(token)) != "fit.resume"]
    plain["fit"] = {**section_of(plain, "fit"), "resume": None}
    run, done = _find(config := parse_config(plain), template, folder)
    if run is not None:
        quoted = str(run).replace('"', r"\"")
        own.append(f'++fit.resume="{quoted}"')
        plain["fit"]["resume"] = str(run)
        config = parse_config(plain)
    return Prepared(config, own, template, done)


def _find(config: Config, template: DictConfig, folder: Path | None) -> tuple[Path | None, Summary | None]:
    """Return the folder of the run to resume, or how the run ended; neither: a new one starts. See `prepare`."""
    key, own, pattern = "folder", folder, Path()
    if folder is None:
        key, (own, pattern) = "hydra.run.dir", _where(template)
    for run in _same_runs(config, pattern) if own is None else [own]:
        if user := user_of(run):
            raise UserError(
                f"fit.resume=auto: a run of this configuration is in progress in {shown(run)} ({user}). Allowed: to "
                "wait until it has ended; or to leave out fit.resume, which starts a second one."
            )
        if own is not None and (run / CONFIG_FILE).is_file() and not _is_same(config, run):
            raise UserError(
                f"{key}={shown(run)}: holds a run of another configuration. Allowed: another folder; or "
                f"fit.resume={shown(run)} in place of auto, if that run can resume with this configuration."
            )
        if (ending := RunFolder(run).summary).status == FINISHED:
            return None, ending
        if (run / LAST).is_file():
            return run, None
    if own is not None:
        reserve(own, key=key, again=True)
    return None, None


def _where(template: DictConfig) -> tuple[Path | None, Path]:
    """Return the folder of the run if it is always the same, else None; and a pattern that all such folders match."""
    unresolved: Any = OmegaConf.to_container(template)
    if "${now:" not in unresolved["dir"] and "${run_suffix:" not in unresolved["dir"]:
        return named_folder(template.dir, "hydra.run.dir"), Path()
    return None, Path(*("*" if "${" in part else part for part in Path(unresolved["dir"]).parts))


def _same_runs(config: Config, pattern: Path) -> Iterator[Path]:
    """Yield the runs of a configuration in the folders that match a pattern, the one that began last first."""
    top = Path(pattern.anchor)
    files = top.glob(str((pattern / CONFIG_FILE).relative_to(pattern.anchor)))
    for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file), reverse=True):
        if _is_same(config, file.parent):
            yield file.parent


def _is_same(config: Config, run: Path) -> bool:
    try:
        return identity_text(identity(load_config(run))) == identity_text(identity(config.resolved))
    except UserError:  # not a configuration that can be read
        return False


@public
def train(*overrides: str, folder: Path | str | None = None, trust: bool = False, **misspelled: object) -> Summary:
    """Train as `python -m trainer` does: `train("+aug=imagenette", "fit.epochs=2")`.

    In a program that torchrun started, all ranks call it; they train together, with the overrides of rank 0. If the
    fit fails, a rank should end: the others may wait for it.

    Args:
        overrides: overrides as on the command line, without flags and sweeps.
        folder: the run's folder; None: a new one in outputs/.
        trust: whether the run that fit.resume names may name code to import, see `augment.cli.trust`.
        misspelled: nothing; an override in another form is refused.

    Returns:
        How the run ended; with `fit.resume=auto`, perhaps earlier.

    Raises:
        UserError: a mistake in the overrides, found before anything is written, or one that ends the run.
    """
    refuse_keywords(misspelled, inner_keys())
    LOADED.clear()
    place = None if folder is None else Path(folder)
    if ranks.follows():
        ranks.follow(leaves=False)
        ending: Any = None
        if (ending := ranks.share(ending)) is None:
            raise UserError("rank 0 did not train; its message says why.")
        return cast(Summary, ending)
    try:
        refuse_words(overrides)
        tokens, start, before = start_of(overrides, trust=trust)
        refuse_sweeps(tokens)
        run = prepare(tokens, start, before, folder=place)
        if run.done is not None:
            ranks.share(None)
            return ranks.share(run.done)
        check_configs([run.config])
    except BaseException:
        ranks.share(None)
        ranks.share(None)
        raise
    ranks.share(run.config.resolved)
    return ranks.share(run_job(run.config, run.tokens, place or new_folder()))
