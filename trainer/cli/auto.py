"""`fit.resume=auto`: one command line that starts a run, resumes it, and leaves it alone once it has finished."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from augment.cli.compose import compose_hydra, compose_jobs
from augment.cli.overrides import key_of, parse
from augment.support.errors import UserError
from augment.support.files import shown
from trainer.loop.checkpoint import LAST
from trainer.run.config import CONFIG_FILE, Config, load_config, parse_config
from trainer.run.folder import named_folder, reserve, user_of
from trainer.run.identity import identity, identity_text
from trainer.run.overrides import AUTO
from trainer.run.summary import Summary, read_summary


def is_auto(tokens: Sequence[str]) -> bool:
    """Return whether overrides ask for the newest run of the same configuration."""
    values = [parse(token).value() for token in tokens if "=" in token and key_of(parse(token)) == "fit.resume"]
    return values[-1:] == [AUTO]


def resume_auto(
    tokens: Sequence[str], folder: Path | None = None, *, config_name: str = "config"
) -> tuple[list[str], Summary | None]:
    """Find the run that `fit.resume=auto` stands for.

    Runs of the same configuration are those of the same `trainer.run.identity.identity`. The newest decides: one
    that finished is not repeated, one that left a checkpoint is resumed, one without any is ignored. If the command
    line names the folder of the run, only this one is looked at, and the run continues or starts again there.

    Args:
        tokens: normalized overrides.
        folder: the run's folder; None: the one that hydra.run.dir names.
        config_name: file of conf/ to start from.

    Returns:
        The overrides, in which `fit.resume` is the run's folder, or is missing if a run is to be started; and how the
        run ended if it has finished.

    Raises:
        UserError: such a run is in progress, or the folder holds a run of another configuration.
    """
    rest = [token for token in tokens if key_of(parse(token)) != "fit.resume"]
    config = parse_config(compose_jobs([rest], config_name=config_name)[0])
    key, own, pattern = "folder", folder, Path()
    if folder is None:
        key, (own, pattern) = "hydra.run.dir", _where(rest, config_name)
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
        ending = read_summary(run)
        if ending is not None and ending.status == "finished":
            return rest, ending
        if (run / LAST).is_file():
            quoted = str(run).replace('"', r"\"")
            return [*rest, f'++fit.resume="{quoted}"'], None
    if own is not None:
        reserve(own, key=key, again=True)
    return rest, None


def _where(tokens: Sequence[str], config_name: str) -> tuple[Path | None, Path]:
    """Return the folder of the run if it is always the same, else None; and a pattern that all such folders match."""
    section = compose_hydra(tokens, config_name=config_name)
    template = str(OmegaConf.to_container(section.run, resolve=False)["dir"])  # type: ignore[index,call-overload]
    if "${now:" not in template and "${run_suffix:" not in template:
        return named_folder(section.run.dir, "hydra.run.dir"), Path()
    return None, Path(*("*" if "${" in part else part for part in Path(template).parts))


def _same_runs(config: Config, pattern: Path) -> Iterator[Path]:
    """Yield the runs of a configuration in the folders that match a pattern, the one that began last first."""
    top = Path(pattern.anchor)
    files = top.glob(str((pattern / CONFIG_FILE).relative_to(pattern.anchor)))
    for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file), reverse=True):
        if _is_same(config, file.parent):
            yield file.parent


def _is_same(config: Config, run: Path) -> bool:
    try:
        one, other = identity(load_config(run)), identity(config)
        if one["fit"].get("auto_batch_size") and other["fit"]["auto_batch_size"]:
            one["fit"]["batch_size"] = other["fit"]["batch_size"]  # the run has the one that it found
        return identity_text(one) == identity_text(other)
    except UserError:  # not a configuration that can be read
        return False
