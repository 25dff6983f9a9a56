"""Overrides of a run that resumes another one: the other's come first, those of the command line win."""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from augment.cli.compose import compose_jobs, split_sweep
from augment.cli.overrides import is_override, key_of, normalize, parse
from augment.cli.trust import TRUST_FLAG, check_overrides
from augment.support.errors import UserError
from augment.support.files import near_file
from augment.support.text import as_bytes
from augment.support.yaml_files import read_list
from trainer.loop.checkpoint import LAST

# Value of fit.resume, see `trainer.cli.auto`.
AUTO = "auto"

# Of a run's folder; written by Hydra on the command line.
OVERRIDES_FILE = Path(".hydra") / "overrides.yaml"


def with_resumed(tokens: Sequence[str]) -> list[str]:
    """Put the overrides of the run that `fit.resume` names before those of the command line, which win.

    Without --trust, which is left out of the result, they decide nothing that only the command line may decide.

    Raises:
        UserError: an override is not UTF-8, the folder is not that of a run, or its overrides need --trust.
    """
    for token in tokens:
        if as_bytes(token) != token.encode(errors="replace"):
            raise UserError(
                f"{token}: is not UTF-8, so config.yaml could not hold it. Allowed: names in UTF-8, also for a "
                "symbolic link; only images and class folders may have other names."
            )
    given = {key_of(parse(t)): t for t in tokens if is_override(t)}
    resume = parse(given["fit.resume"]).value() if "=" in given.get("fit.resume", "") else None
    if resume in (None, AUTO):
        return list(tokens)
    folder = Path(str(resume))
    file = folder / OVERRIDES_FILE
    if not file.is_file() or not (folder / LAST).is_file():
        missing = f"no {LAST} and {OVERRIDES_FILE} in it."
        if not folder.exists():
            missing = f"no such folder.{near_file(folder, folder=True)}"
        if folder.is_file():
            missing = f"a file. Did you mean {folder.parent}?"
        raise UserError(f"fit.resume={folder}: {missing} Allowed: the folder of a run that saved a checkpoint.")
    trust, tokens = TRUST_FLAG in tokens, [token for token in tokens if token != TRUST_FLAG]
    saved = [token for token in _saved(file) if key_of(parse(token)) not in given]
    if not trust:
        _check_saved(saved, tokens, file)
    return saved + tokens


def _saved(file: Path) -> list[str]:
    """Return the overrides of a run, without Hydra's own: where and how a resumed run runs is decided again."""
    saved = []
    for token in map(str, read_list(file, file.parents[1])):
        if not is_override(token):
            raise UserError(f"{file}: {token!r} is not an override. Allowed: key=value, ~key.")
        parsed = parse(token)
        if not any(re.match(r"hydra\b", name or "") for name in (key_of(parsed), parsed.package)):
            saved.append(token)
    return saved


def _check_saved(saved: Sequence[str], tokens: Sequence[str], file: Path) -> None:
    config_name = parse_flags(tokens)[0].config_name or "config"
    # What the command line deletes, it names.
    given = [token for token in tokens if is_override(token) and not token.startswith("~")]
    named, *_ = compose_jobs(split_sweep(normalize(given)), config_name=config_name)
    for runs in split_sweep(normalize([*saved, *given])):  # which has its weights
        check_overrides(saved, runs, named, file, config_name, ("data", "callbacks"))


def parse_flags(tokens: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Return the values of Hydra's flags, with the overrides among them, and the flags that are unknown.

    Raises:
        UserError: a flag lacks its value, or has one that is not allowed.
    """

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}.")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.allow_abbrev = False
    return parser.parse_known_args(flags_first(tokens))


def flags_first(tokens: Sequence[str]) -> list[str]:
    """Put flags and their values before all overrides, as Hydra requires: `fit.lr=1 -m seed=0,1` works too."""
    return sorted(tokens, key=is_override)
