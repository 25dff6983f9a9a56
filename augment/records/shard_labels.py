"""What the samples of a tar shard are labeled with: a text file beside the picture, or fields of a JSON file."""

import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from augment.errors import UserError
from augment.stored import mapped
from augment.targets.labels import Label

# The files of a sample by their ending.
Members = dict[str, tarfile.TarInfo]

# A label or number, or where JSON has a list any number of them.
Found = Label | list[Label]

_MOST_BYTES = 2**20
_TOO_LARGE = 1e300  # for a whole number to become a float


def label_reader(file: Path, label: str | None, targets: Sequence[str]) -> Callable[[str, Members], Found]:
    """Return what finds the labels or numbers of a sample, given the name of its picture and its members.

    Args:
        file: the shard.
        label: where labels are: "cls" or another ending, "json.FIELD", or None for cls, else the JSON's "label".
        targets: fields of the JSON that hold a number each, in place of `label`.

    Returns:
        The reader; it raises a `UserError` about what is not there or no label.
    """
    ending, _, path = (label or "").partition(".")
    if targets:
        ways = [("json", targets[0])]
    elif not label:
        ways = [("cls", ""), ("json", "label")]
    else:
        ways = [(ending, path or "label")] if ending == "json" else [(label.lower(), "")]

    def read(picture: str, members: Members) -> Found:
        for ending, path in ways:
            if ending in members:
                member = members[ending]
                if member.size > _MOST_BYTES:
                    raise UserError(f"{file}/{member.name}: has {member.size:,} bytes, which is no label.")
                content = bytes(mapped(file)[member.offset_data : member.offset_data + member.size])
                where = f"{file}/{member.name}"
                if targets:
                    return _numbers(_parse(content, where), targets, where)
                return _from_json(_parse(content, where), path, where) if path else _from_text(content, member, file)
        stem = picture.rpartition("/")[2].partition(".")[0]
        wanted = " or ".join(f"{stem}.{ending}" for ending, _ in ways)
        others = {name: member.name for name, member in members.items() if member.name != picture}
        raise UserError(
            f"{file}: {picture} has no label: there is no {wanted}"
            + (f", only {', '.join(others.values())}" if others else "")
            + (
                ". data.targets names numbers in there."
                if targets
                else ". data.label says where labels are: cls, another ending, or json.FIELD."
            )
            + _near(ways[0][0] if targets else label or "cls", others)
        )

    return read


def _from_text(content: bytes, member: tarfile.TarInfo, file: Path) -> Label:
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise UserError(f"{file}/{member.name}: is no label. Allowed: the number or the name of a class, as text.")
    return _number_or_name(text)


def _parse(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is no JSON ({error}).") from None


def _field(value: Any, path: str, where: str, setting: str) -> Any:
    """Return the value of a field, or of one within others, a.b."""
    if isinstance(value, dict) and path in value:
        return value[path]
    for field in path.split("."):
        if not isinstance(value, dict) or field not in value:
            there = f"; there is {', '.join(map(str, value))}" if isinstance(value, dict) else ""
            near = _near(field, value) if isinstance(value, dict) else ""
            raise UserError(f"{where}: has no field {path}{there}. {setting}.{near}")
        value = value[field]
    return value


def _from_json(content: Any, path: str, where: str) -> Found:
    value = _field(content, path, where, "data.label=json.FIELD says which one is the label")
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, bool) or not isinstance(one, int | float | str) or one == "":
            raise UserError(
                f"{where}: {path} is {value!r}. Allowed: the number or the name of a class, a number to predict, "
                "or a list of them."
            )
    found: Found = value
    return found


def _numbers(content: Any, targets: Sequence[str], where: str) -> list[Label]:
    found: list[Label] = []
    for name in targets:
        value = _field(content, name, where, "data.targets names the fields with numbers")
        if not isinstance(value, int | float):
            several = isinstance(value, list)
            hint = f"; data.label=json.{name} data.task=regress reads a list" if several else ""
            raise UserError(f"{where}: {name} is {value!r}. Allowed: a number{hint}.")
        found.append(float(value) if abs(value) < _TOO_LARGE else float("inf"))
    return found


def _near(name: str, allowed: Iterable[str]) -> str:
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def _number_or_name(text: str) -> Label:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else text
