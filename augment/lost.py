"""What is said where a picture that was there when a run began cannot be read any more."""

import re
from collections.abc import Sequence
from pathlib import Path

from augment.check import check_files
from augment.dataset import Picture
from augment.errors import UserError
from augment.stored import are_paths, name_of

_SHOWN = 5

# DALI names the operator that failed and, where a file could not be opened at all, the file.
_OF_FILES = re.compile(r"fn\.(readers\.file|decoders\.)")
_NOT_OF_FILES = re.compile(r"out of memory|bad_alloc|\bCUDA\b")
_OPENED = re.compile(r"^(?:File mapping failed|Failed to open file|Could not open file)\W+(.+)$", re.MULTILINE)


def lost(picture: Picture, error: OSError) -> UserError:
    """Return the error of a picture that the system does not hand out."""
    where = f" ({error.filename})" if error.filename else ""
    return UserError(f"data: {name_of(picture)} cannot be read any more: {error.strerror or error}{where}.")


def explain(error: RuntimeError, pictures: Sequence[Picture]) -> UserError | None:
    """Say which files an error of DALI is about; None if all are as they should be, so that it is about none.

    Args:
        error: of a pipeline that reads or decodes.
        pictures: what it reads. All are looked at, unless the error names one.
    """
    text = str(error)
    if not _OF_FILES.search(text) or _NOT_OF_FILES.search(text) or not are_paths(pictures):
        return None
    named = [file for name in _OPENED.findall(text) if (file := Path(name.strip().strip('"'))) in set(pictures)]
    problems = check_files(named or list(dict.fromkeys(pictures)))
    if not problems:
        return None
    shown = "; ".join(f"{name_of(problem.file)} {problem.reason}" for problem in problems[:_SHOWN])
    more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    return UserError(f"data: a picture has changed since the run began: {shown}{more}.")
