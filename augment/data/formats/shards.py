"""Find the files that a pattern names: train-{000..009}.tar, train-*.tar, {a,b}.tar."""

import re
from collections import Counter
from glob import glob
from pathlib import Path

from augment.support.errors import UserError
from augment.support.files import expanded, near_file

_INDEXES = {".idx", ".index", ".lst"}  # endings of indexes of files of records
_MATCHES = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{(.*?)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def find_shards(pattern: str, key: str) -> list[Path]:
    """Return the files that a path names in which {000..009} counts and {a,b} lists; matches of * ? [ ] are sorted.

    Raises:
        UserError: a file is missing, there is none, or one is named twice.
    """
    found: list[Path] = []
    for name in expand_braces(str(expanded(pattern)), f"{key}={pattern}"):
        if _MATCHES.search(name) and not Path(name).exists():
            matches = [Path(match) for match in sorted(glob(name, recursive=True)) if Path(match).is_file()]
            if not matches:
                raise UserError(f"{key}={pattern}: no file matches.{near_file(Path(name))}")
            # train-* also matches the indexes of the files.
            found += [match for match in matches if match.suffix not in _INDEXES] or matches
        elif Path(name).is_dir():
            raise UserError(f"{key}={pattern}: {name} is a folder. Allowed: files, such as {Path(name) / '*'}.")
        elif Path(name).exists() and not Path(name).is_file():
            raise UserError(f"{key}={pattern}: {name} is a named pipe, a socket or a device. Allowed: files.")
        elif not Path(name).is_file():
            raise UserError(f"{key}={pattern}: there is no file {name}.{near_file(Path(name))}")
        else:
            found.append(Path(name))
    if len(set(found)) < len(found):
        raise UserError(f"{key}={pattern}: names {Counter(found).most_common(1)[0][0]} twice. Allowed: each file once.")
    return found


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern: it has braces, or it has * ? [ and no file has this name."""
    return "{" in name or "}" in name or bool(_MATCHES.search(name) and not expanded(name).exists())


def expand_braces(pattern: str, key: str = "") -> list[str]:
    """Expand braces like a shell: {000..002}, which keeps its zeros, and {a,b}.

    Raises:
        UserError: a brace is alone, or braces neither count up nor list.
    """
    found = _BRACES.search(pattern)
    if not found and not {"{", "}"} & set(pattern):
        return [pattern]
    inner = found[1] if found else ""
    counted = _RANGE.fullmatch(inner)
    if counted and int(counted[1]) <= int(counted[2]):
        first, last = counted.groups()
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        middle = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    elif "," in inner and "{" not in inner:
        middle = inner.split(",")
    else:
        raise UserError(f"{key}: braces that neither count up nor list. Allowed: {{000..009}} or {{a,b}}.")
    before, _, after = pattern.partition(f"{{{inner}}}")
    return [f"{before}{part}{tail}" for part in middle for tail in expand_braces(after, key)]
