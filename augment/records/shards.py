"""Which files a pattern names: train-{000..009}.tar or train-*.tar, and several of them with commas within braces."""

import re
from collections import Counter
from glob import glob
from pathlib import Path

from augment.errors import UserError
from augment.files import near_file

_INDEXES = {".idx", ".index", ".lst"}  # which lie beside files of records
_MATCHES = re.compile(r"[*?\[]")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def find_shards(pattern: str, key: str) -> list[Path]:
    """Return the files that a pattern names: in the order of its braces, and of the names that * ? [ ] find.

    Args:
        pattern: a path in which {000..009} counts and {a,b} lists.
        key: key path of the pattern, for messages.

    Raises:
        UserError: a file is missing, there is none, or one is named twice.
    """
    found: list[Path] = []
    for name in expand_braces(str(Path(pattern).expanduser()), f"{key}={pattern}"):
        if _MATCHES.search(name) and not Path(name).exists():
            matches = [Path(match) for match in sorted(glob(name, recursive=True)) if Path(match).is_file()]
            if not matches:
                raise UserError(f"{key}={pattern}: no file is named so.{near_file(Path(name))}")
            # An index lies beside each of the files that train-* means.
            found += [match for match in matches if match.suffix not in _INDEXES] or matches
        elif Path(name).is_dir():
            raise UserError(f"{key}={pattern}: {name} is a folder. Allowed: files, as {_files_in(Path(name))}.")
        elif not Path(name).is_file():
            raise UserError(f"{key}={pattern}: there is no file {name}.{near_file(Path(name))}")
        else:
            found.append(Path(name))
    if twice := [file for file in found if found.count(file) > 1] if len(set(found)) < len(found) else []:
        raise UserError(f"{key}={pattern}: names {twice[0]} twice. Allowed: each file once.")
    return found


def is_pattern(name: str) -> bool:
    """Whether a name stands for others: it has braces, or * ? [ and is not itself the name of something."""
    return "{" in name or "}" in name or bool(_MATCHES.search(name) and not Path(name).expanduser().exists())


def expand_braces(pattern: str, key: str = "") -> list[str]:
    """Return the names that braces stand for, as a shell has them: {000..002} with its zeros, {a,b}.

    Raises:
        UserError: braces that neither count nor list, or one alone.
    """
    start = pattern.find("{")
    if start < 0:
        if "}" in pattern:
            raise UserError(f"{key}: a brace is closed that was not opened. Allowed: {{000..009}} or {{a,b}}.")
        return [pattern]
    end = pattern.find("}", start)
    if end < 0:
        raise UserError(f"{key}: a brace is not closed. Allowed: {{000..009}} or {{a,b}}.")
    inner = pattern[start + 1 : end]
    if counted := _RANGE.fullmatch(inner):
        first, last = counted.groups()
        if int(last) < int(first):
            raise UserError(f"{key}: {{{inner}}} counts down. Allowed: the lower number first.")
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        middle = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    elif "," in inner and "{" not in inner:
        middle = inner.split(",")
    else:
        raise UserError(f"{key}: {{{inner}}} neither counts nor lists. Allowed: {{000..009}} or {{a,b}}.")
    rest = expand_braces(pattern[end + 1 :], key)
    return [f"{pattern[:start]}{part}{tail}" for part in middle for tail in rest]


def _files_in(folder: Path) -> Path:
    """Return a pattern of the files in a folder that have its most frequent ending, other than that of indexes."""
    files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    endings = Counter(file.suffix for file in files if file.suffix not in _INDEXES)
    return folder / f"*{endings.most_common(1)[0][0] if endings else ''}"
