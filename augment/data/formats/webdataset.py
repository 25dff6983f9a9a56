"""Index tar shards of WebDataset: files that differ only in their ending form a sample, cat_1.jpg and cat_1.cls.

Labels are in a text file next to the image, or in fields of a JSON file.
"""

import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.records import Record, RecordFile
from augment.data.formats.text_files import whole_number
from augment.data.targets.class_names import Label
from augment.support.errors import UserError, first_line, suggest

_BLOCK = 512  # bytes, of which tar is made
# The files of a sample by their ending.
Members = dict[str, tarfile.TarInfo]

_WHERE = "data.label names where labels are: cls, another ending, or json.FIELD; data.targets names fields of numbers"


def read_shard(
    file: RecordFile, *, label: str | None = None, targets: Sequence[str] = (), numbers: bool = False
) -> Iterator[Record]:
    """Yield the samples of a shard, named by their images.

    Args:
        file: the shard.
        label: source of labels: "cls" or another ending, "json.FIELD", or None for cls, else the JSON's "label".
        targets: fields of the JSON with a number each, instead of `label`.
        numbers: whether labels are numbers to predict; text that is not a number stays text.

    Raises:
        UserError: it is not a complete tar file, or a sample lacks image or label.
    """
    with file.path.open("rb") as stream:
        read = _label_reader(stream, label, targets)
        for key, members in _samples(stream).items():
            image = _image(key, members)
            labels = read(image.name, members)
            if numbers:
                with suppress(ValueError, TypeError, OverflowError):
                    labels = list(map(float, labels))
            yield Record(image.offset_data, image.size, labels, image.name)


def _image(key: str, members: Members) -> tarfile.TarInfo:
    found = [ending for ending in members if f".{ending.rpartition('.')[2]}" in EXTENSIONS]
    if len(found) != 1:
        listed = ", ".join(member.name for member in members.values())
        raise UserError(
            f"sample {key} has {'more than one image' if found else 'no image'}: {listed}. A sample is all files with "
            f"the same name up to the first dot. Allowed: one, with one of the endings {', '.join(sorted(EXTENSIONS))}."
        )
    return members[found[0]]


def _samples(stream: BinaryIO) -> dict[str, Members]:
    """Return the members of a shard by key, which is the name up to its first dot, and ending."""
    samples: dict[str, Members] = {}
    last = "nothing"
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                folder, slash, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                if not member.isreg() or not stem:
                    continue
                endings = samples.setdefault(f"{folder}{slash}{stem}", {})
                if ending.lower() in endings:
                    raise UserError(f"holds {member.name} twice. Allowed: each file once.")
                endings[ending.lower()] = member
                last = member.name
    except tarfile.TarError as error:
        raise UserError(f"is not a tar file, compressed, or cut short ({first_line(error)}).") from None
    stream.seek(archive.offset)
    if stream.read(_BLOCK) != bytes(_BLOCK):
        raise UserError(f"is cut short or damaged: after {last} come neither another file nor the mark of the end.")
    return samples


def _label_reader(stream: BinaryIO, label: str | None, targets: Sequence[str]) -> Callable[[str, Members], list[Label]]:
    """Return a function that finds the labels or numbers of a sample, given the name of its image and its members.

    It raises a `UserError` if a label is missing or invalid. The arguments are those of `read_shard`.
    """
    ending, _, path = (label or "").partition(".")
    ways = [(ending, path or "label")] if ending == "json" else [(str(label).lower(), "")]
    if targets or not label:
        ways = [("json", targets[0])] if targets else [("cls", ""), ("json", "label")]

    def read(image: str, members: Members) -> list[Label]:
        for ending, path in ways:
            if ending in members:
                member = members[ending]
                stream.seek(member.offset_data)
                value = _parse(stream.read(member.size), member.name, is_text=not path)
                if not path:
                    return [value]
                found = [_field(value, name, member.name) for name in targets or (path,)]
                return found[0] if isinstance(found[0], list) and not targets else found
        wanted = " or ".join(f"{image.rpartition('/')[2].partition('.')[0]}.{ending}" for ending, _ in ways)
        only = ", ".join(member.name for member in members.values() if member.name != image) or "the image"
        raise UserError(f"{image} has no label: there is no {wanted}, only {only}. {_WHERE}.")

    return read


def _parse(content: bytes, where: str, *, is_text: bool) -> Any:
    """Return the number or the name in a text, or the value of JSON."""
    try:
        text = content.decode("utf-8-sig").strip()
        if not is_text:
            return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not {'text' if is_text else 'JSON'} ({error}).") from None
    if not text:
        raise UserError(f"{where}: is empty. Allowed: the number or the name of a class, as text.")
    return whole_number(text, text)


def _field(value: Any, path: str, where: str) -> Any:
    """Return the value of a field, or of one within others, a.b."""
    for field in [path] if isinstance(value, dict) and path in value else path.split("."):
        there = value if isinstance(value, dict) else {}
        if field not in there:
            raise UserError(f"{where}: has no field {path}.{suggest(field, there)} {_WHERE}.")
        value = there[field]
    return value
