"""Read YAML files safely: none can run code, and none that comes from a stranger takes long or fills the memory."""

from pathlib import Path

import yaml

from augment.support.errors import UserError, first_line
from augment.support.files import require_file
from augment.support.hydra import get_yaml_loader
from augment.support.reading import MAX_DEPTH, read_bytes

# Far above any real configuration. OmegaConf takes seconds for this many values, and recurses into nested ones.
MAX_BYTES, MAX_VALUES = 2**20, 20_000

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(file: Path, *, folder: Path | None = None, as_text: bool = False) -> object:
    """Read a YAML file as plain values; interpolations, `${...}`, stay text, and so does every value with `as_text`.

    If it is in the folder of a run or sweep, see `augment.support.reading`, a program wrote it, so that it has no
    aliases, and libyaml can read it, which is ten times as fast.

    Raises:
        UserError: it cannot be read, is not YAML, has tags for Python objects, or is too large.
    """
    try:
        text = (require_file(file).read_bytes() if folder is None else read_bytes(file, folder, MAX_BYTES)).decode()
        _check(text, file, aliases=folder is None)
        loader = get_yaml_loader()
        if folder is not None and not issubclass(loader, _Loader):  # that of OmegaConf 2.4.1 is one already
            loader = type("Loader", (_Loader, loader), {})
        if as_text:  # 007, no, null and 12:30 are names
            loader = type("TextLoader", (loader,), {"yaml_implicit_resolvers": {}})
        loaded: object = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise UserError(f"{file}: {describe_slip(error)}") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{file}: cannot be read: {why}. Allowed: a YAML file, in UTF-8.") from error
    return {} if loaded is None else loaded


def read_list(file: Path, folder: Path) -> list[object]:
    """Read a YAML file that holds a list; see `read_yaml`."""
    loaded = read_yaml(file, folder=folder)
    if loaded and not isinstance(loaded, list):
        raise UserError(f"{file}: holds no list. Allowed: a YAML list.")
    return loaded if isinstance(loaded, list) else []


def _check(text: str, file: Path, *, aliases: bool) -> None:
    """Check that the values of a YAML file can be built safely, before they are: few, not nested deeply, without tags.

    Aliases, of which some that repeat one another are values without end, are for files of the user's own.
    """
    values = depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) and not aliases:
            raise UserError(f"{file}: the alias *{event.anchor} is not allowed. Allowed: plain values.")
        if "python" in (getattr(event, "tag", None) or ""):
            raise UserError(f"{file}: the tag {event.tag} is not allowed. Allowed: plain values.")
        if max(values / MAX_VALUES, depth / MAX_DEPTH, len(text) / MAX_BYTES) > 1:
            raise UserError(
                f"{file}: too large. Allowed: {MAX_BYTES:,} bytes, {MAX_VALUES:,} values, {MAX_DEPTH} levels."
            )


def describe_slip(error: yaml.YAMLError) -> str:
    """Return what is wrong with a YAML file, in a sentence that begins with the line and the column, from 1."""
    mark, opened = (getattr(error, f"{name}_mark", None) for name in ("problem", "context"))
    problem = getattr(error, "problem", None) or first_line(error)
    context = f" {getattr(error, 'context', None) or ''}"
    if opened and mark and opened.index != mark.index:
        context += f" from {_place(opened)}"
    where = f"{_place(mark)}: " if mark else ""
    allowed = "YAML; the items of a mapping are key: value, each key once, all indented alike, with spaces"
    return f"{where}{problem}{context.rstrip()}. Allowed: {allowed}."


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
