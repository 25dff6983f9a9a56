"""Read YAML files safely. A stranger's file cannot run code, take long to read or fill the memory."""

from pathlib import Path

import yaml

from augment.support.errors import UserError, first_line
from augment.support.files import read_file
from augment.support.hydra import get_yaml_loader
from augment.support.untrusted_files import MAX_DEPTH, check_numbers, damage_errors, read_bytes

# Limits far above any real configuration. OmegaConf takes seconds for this many values.
MAX_YAML_BYTES, MAX_YAML_VALUES, MAX_TEXT, _MAX_KEY = 2**20, 20_000, 2**16, 255

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}


def read_yaml(file: Path, *, folder: Path | None = None, as_text: bool = False) -> object:
    """Read a YAML file as plain values. Interpolations, `${...}`, stay strings.

    Args:
        file: the file.
        folder: the run or sweep folder that contains the file, if any. libyaml reads such files 10x faster.
        as_text: whether to read all values as strings.

    Raises:
        UserError: the file cannot be read, is not YAML, has a tag that is not supported, or is too large.
    """
    try:
        content = read_file(file) if folder is None else read_bytes(file, folder, MAX_YAML_BYTES)
        _check_content(text := content.decode(), file)
        loader = get_yaml_loader()
        if folder is not None and not issubclass(loader, _Loader):  # OmegaConf 2.4.1 already uses libyaml
            loader = type("Loader", (_Loader, loader), {})
        if as_text:  # so that 007, no, null and 12:30 stay text
            loader = type("TextLoader", (loader,), {"yaml_implicit_resolvers": {}})
        loaded: object = yaml.load(text, Loader=loader)
        check_numbers(loaded)
        if _longest_key(loaded) > _MAX_KEY:  # each value repeats the keys above it in its key path
            raise _too_large(file)
    except yaml.YAMLError as error:
        raise UserError(f"{file}: {describe_yaml_error(error)}") from error
    except damage_errors(OSError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{file}: cannot be read: {why}. Use a YAML file in UTF-8.") from error
    return {} if loaded is None else loaded


def read_list(file: Path, folder: Path) -> list[object]:
    """Read a YAML file that contains a list. See `read_yaml`."""
    loaded = read_yaml(file, folder=folder)
    if loaded and not isinstance(loaded, list):
        raise UserError(f"{file}: the file must contain a YAML list.")
    return loaded if isinstance(loaded, list) else []


def _check_content(text: str, file: Path) -> None:
    """Check the tags and the size of a YAML file before its values are built.

    An alias counts as all values that it repeats, because nested aliases can grow exponentially.
    """
    if len(text) > MAX_YAML_BYTES:
        raise _too_large(file)
    values = 0
    opened: list[tuple[str | None, int]] = []  # the anchors of open collections, and the number of values before each
    sizes: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", *_TAGS):
            raise UserError(f"{file}: the tag {tag} is not supported. Remove it.")
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise UserError(f"{file}: the alias *{event.anchor} contains itself. Write the values out.")
            values += sizes.get(event.anchor, 1)
        values += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, values - 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = values - before
        long = len(getattr(event, "value", "")) > MAX_TEXT
        if long or values > MAX_YAML_VALUES or len(opened) > MAX_DEPTH:
            raise _too_large(file)


def _too_large(file: Path) -> UserError:
    return UserError(
        f"{file}: the file is too large. The limits are {MAX_YAML_BYTES:,} bytes, {MAX_YAML_VALUES:,} values, "
        f"{MAX_DEPTH} levels, {_MAX_KEY} characters per key, and {MAX_TEXT:,} per value."
    )


def _longest_key(values: object) -> int:
    """Return the number of characters of the longest key in plain values."""
    if isinstance(values, dict):
        return max((*(len(str(key)) for key in values), *map(_longest_key, values.values())), default=0)
    return max(map(_longest_key, values), default=0) if isinstance(values, list) else 0


def describe_yaml_error(error: yaml.YAMLError) -> str:
    """Describe a mistake in a YAML file. Start with its line and column, counted from 1."""
    mark, opened = (getattr(error, f"{name}_mark", None) for name in ("problem", "context"))
    problem = getattr(error, "problem", None) or first_line(error)
    context = f" {getattr(error, 'context', None) or ''}"
    if opened and mark and opened.index != mark.index:
        context += f" from {_position(opened)}"
    where = f"{_position(mark)}: " if mark else ""
    return (
        f"{where}{problem}{context.rstrip()}. Write the items of a mapping as key: value, each key once, and indent "
        "them equally with spaces."
    )


def _position(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
