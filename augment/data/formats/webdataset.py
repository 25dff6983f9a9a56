"""Index WebDataset's tar shards. Files with the same name up to the first dot form a sample: cat_1.jpg and cat_1.cls.

Labels are in a text file next to the image, or in fields of a JSON file.
"""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from augment.data.formats.folder import EXTENSIONS
from augment.data.formats.raster_files import RASTER_EXTENSIONS
from augment.data.formats.records import Record, RecordFile
from augment.data.formats.text_files import whole_number
from augment.data.targets.class_names import Label
from augment.support.errors import UserError, first_line, suggest
from augment.support.untrusted_files import MAX_BYTES, parse_json

_BLOCK = 512  # bytes of a tar block
_MAX_GLOBALS = 100  # records in global headers. Python copies these records for each file
_MAX_HEADER_BYTES = 2**16  # bytes of a header with a long name or records. Python may take minutes for larger ones
# The files of a sample by their extension.
Members = dict[str, tarfile.TarInfo]

_REMEDY = "Set data.label to cls, another extension or json.FIELD, or set data.targets to JSON fields of numbers"


class _Member(tarfile.TarInfo):
    """A file in a shard. Negative sizes would make Python read a shard in circles."""

    def _block(self, count: int) -> int:
        is_header = self.type in (*tarfile.GNU_TYPES[:2], tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if count < 0 or (is_header and count > _MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header gives the size {count:,}")
        return int(super()._block(count))  # type: ignore[misc]


def read_shard(
    file: RecordFile, *, label: str | None = None, targets: Sequence[str] = (), numbers: bool = False
) -> Iterator[Record]:
    """Yield the samples of a shard, named by their images.

    Args:
        file: the shard.
        label: source of labels: "cls", another extension or "json.FIELD". Default: "cls", or else "json.label".
        targets: JSON fields with one number each, instead of `label`.
        numbers: whether labels are numbers to predict. Text that is not a number stays text.

    Raises:
        UserError: the file is not a complete tar file, or a sample lacks an image or a label.
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
    named = {extension: f".{extension.rpartition('.')[2]}" for extension in members}
    found = [extension for extension, name in named.items() if name in EXTENSIONS - RASTER_EXTENSIONS]
    # Arrays next to an encoded image are other data, such as features.
    found = found or [extension for extension, name in named.items() if name in RASTER_EXTENSIONS]
    if len(found) != 1:
        listed = ", ".join(member.name for member in members.values())
        raise UserError(
            f"sample {key} has {'more than one image' if found else 'no image'}: {listed}. Files with the same name up "
            f"to the first dot must include exactly one image. Allowed extensions: {', '.join(sorted(EXTENSIONS))}."
        )
    return members[found[0]]


def _samples(stream: BinaryIO) -> dict[str, Members]:
    """Return the samples of a shard by key, the name up to the first dot. A sample maps extensions to members."""
    samples: dict[str, Members] = {}
    last = "nothing"
    try:
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Member) as archive:
            for member in archive:
                if len(archive.pax_headers) > _MAX_GLOBALS:
                    raise tarfile.ReadError(f"its global headers have {len(archive.pax_headers):,} records")
                folder, slash, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                if not member.isreg() or not stem:
                    continue
                members = samples.setdefault(f"{folder}{slash}{stem}", {})
                if extension.lower() in members:
                    raise UserError(f"holds {member.name} twice. Remove one of the two.")
                members[extension.lower()] = member
                last = member.name
    except tarfile.TarError as error:
        raise UserError(f"is not an uncompressed tar file, or is truncated ({first_line(error)}).") from None
    stream.seek(archive.offset)
    if stream.read(_BLOCK) != bytes(_BLOCK):
        raise UserError(f"is truncated or damaged: neither another file nor the end of the archive follows {last}.")
    return samples


def _label_reader(stream: BinaryIO, label: str | None, targets: Sequence[str]) -> Callable[[str, Members], list[Label]]:
    """Return a function that finds the labels of a sample, given its image's name and its members."""
    # Each source is an extension and, for JSON, a field.
    if targets:
        sources = [("json", targets[0])]
    elif not label:
        sources = [("cls", ""), ("json", "label")]
    elif label.partition(".")[0] == "json":
        sources = [("json", label.partition(".")[2] or "label")]
    else:
        sources = [(label.lower(), "")]

    def read(image: str, members: Members) -> list[Label]:
        for extension, path in sources:
            if extension in members:
                member = members[extension]
                stream.seek(member.offset_data)
                if member.size > MAX_BYTES:
                    raise UserError(f"{member.name} has {member.size:,} bytes. The limit is {MAX_BYTES:,}.")
                value = _parse(stream.read(member.size), member.name, is_text=not path)
                if not path:
                    return [value]
                found = [_field(value, name, member.name) for name in targets or (path,)]
                return found[0] if isinstance(found[0], list) and not targets else found
        stem = image.rpartition("/")[2].partition(".")[0]
        wanted = " or ".join(f"{stem}.{extension}" for extension, _ in sources)
        only = ", ".join(member.name for member in members.values() if member.name != image) or "the image"
        raise UserError(f"{image} has no label: cannot find {wanted}, only {only}. {_REMEDY}.")

    return read


def _parse(content: bytes, where: str, *, is_text: bool) -> Any:
    """Return the number or name in a text, or the value of JSON."""
    try:
        text = content.decode("utf-8-sig").strip()
        if not is_text:
            return parse_json(text, any_numbers=True)  # metadata may contain hashes
    except ValueError as error:
        raise UserError(f"{where} is not {'text' if is_text else 'JSON'} ({error}).") from None
    if not text:
        raise UserError(f"{where} is empty. Write the number or name of a class into it.")
    return whole_number(text, text)


def _field(value: Any, path: str, where: str) -> Any:
    """Return the value of a field, which may be nested: a.b."""
    for field in [path] if isinstance(value, dict) and path in value else path.split("."):
        fields = value if isinstance(value, dict) else {}
        if field not in fields:
            raise UserError(f"{where} has no field {path}.{suggest(field, fields)} {_REMEDY}.")
        value = fields[field]
    return value
