"""Overrides of a run that goes on with another one: the other's come first, those of the command line win."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from augment.compose import key_of, parse
from augment.errors import UserError


def with_resumed(tokens: Sequence[str]) -> list[str]:
    """Put the overrides of the run that `fit.resume` names before those of the command line, which win.

    Raises:
        UserError: the folder is not that of a run.
    """
    given = {key_of(parse(t)): t for t in tokens if _is_override(t)}
    resume = parse(given["fit.resume"]).value() if "=" in given.get("fit.resume", "") else None
    if resume is None:
        return list(tokens)
    folder = Path(str(resume))
    file = folder / ".hydra" / "overrides.yaml"
    if not file.is_file() or not (folder / "last.pt").is_file():
        missing = "no such folder" if not folder.is_dir() else "no last.pt and .hydra/overrides.yaml in it"
        if folder.is_file():
            missing = "a file, not a folder"
        raise UserError(f"fit.resume={folder}: {missing}. Allowed: the folder of a run that saved a checkpoint.")
    saved = [str(token) for token in OmegaConf.load(file)]
    return [token for token in saved if key_of(parse(token)) not in given] + list(tokens)


def flags_first(tokens: Sequence[str]) -> list[str]:
    """Put flags and their values before all overrides, as Hydra wants them: `fit.lr=1 -m seed=0,1` is as good."""
    return sorted(tokens, key=_is_override)


def _is_override(token: str) -> bool:
    return not token.startswith("-") and ("=" in token or token.startswith("~"))
