"""Overrides of a run that resumes another one: the other's come first, those of the command line win."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from augment.cli.compose import compose_run
from augment.cli.overrides import is_override, key_of, normalize, parse
from augment.cli.trust import Gate
from augment.support.errors import UserError
from augment.support.files import require_in
from augment.support.text import as_bytes
from augment.support.yaml_files import read_list
from trainer.loop.checkpoint import LAST
from trainer.run.older import renamed

# Value of fit.resume, see `trainer.cli.jobs`.
AUTO = "auto"

# Of a run's folder.
OVERRIDES_FILE = Path(".hydra") / "overrides.yaml"


def resumed_in(tokens: Sequence[str]) -> str | None:
    """Return the value of `fit.resume` among overrides, the last one of several; None: there is none."""
    values = [parse(token).value() for token in tokens if "=" in token and key_of(parse(token)) == "fit.resume"]
    return None if not values or values[-1] is None else str(values[-1])


def with_resumed(
    tokens: Sequence[str], *, trust: bool = False, config_name: str = "config"
) -> tuple[list[str], Gate | None]:
    """Put the overrides of the run that `fit.resume` names before those of the command line, which win.

    Args:
        tokens: the overrides of the command line.
        trust: whether the run's overrides may decide what only the command line may decide.
        config_name: file of conf/ to start from.

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
