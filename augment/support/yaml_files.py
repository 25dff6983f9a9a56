"""Read YAML files safely: none can run code, take long, or fill the memory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from augment.support.errors import UserError, first_line
from augment.support.files import require_file
from augment.support.hydra_versions import get_yaml_loader
from augment.support.reading import MAX_DEPTH, read_bytes

# Far above any real configuration. OmegaConf takes seconds for this many values, and recurses into nested ones.
MAX_BYTES, MAX_VALUES = 2**20, 20_000

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(file: Path, *, folder: Path | None = None) -> object:
    """Read a YAML file as plain values; interpolations, `${...}`, stay text.

    Args:
        file: the file.
        folder: the folder of a run or sweep that it is in, see `augment.support.reading`. A program wrote it then:
            libyaml reads it ten times as fast, but knows less about mistakes.

    Raises:
        UserError: it cannot be read, is not YAML, has tags for Python objects, or is too large.
    """
    text = ""
    try:
        text = (require_file(file).read_bytes() if folder is None else read_bytes(file, folder, MAX_BYTES)).decode()
        check_yaml(text, file)
        loaded: object = yaml.load(text, Loader=get_yaml_loader() if folder is None else _saved_loader())
    except yaml.YAMLError as error:
        raise UserError(f"{file}: {describe_slip(error, text)}") from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()
        raise UserError(f"{file}: {_place(before)}: this is not UTF-8. Allowed: a text file in UTF-8.") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{file}: cannot be read: {why}. Allowed: a YAML file.") from error
    return {} if loaded is None else loaded


@cache
def _saved_loader() -> type:
    """Return Hydra's loader with the parser of libyaml, if PyYAML has it; that of OmegaConf 2.4.1 is one already."""
    plain: type = get_yaml_loader()
    return plain if issubclass(plain, _Loader) else type("Loader", (_Loader, plain), {})


def describe_slip(error: yaml.YAMLError, text: str = "") -> str:
    """Return what is wrong with a YAML file, in a sentence that begins with the line and the column, from 1.

    Args:
        error: the error of the parser.
        text: the content of the file, if it is known.
    """
    if isinstance(error, yaml.reader.ReaderError):
        return f"{_place(text[: error.position])}: a control character. Allowed: text without them."
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not YAML: {first_line(error)}."
    mark, opened, context = error.problem_mark, error.context_mark, error.context or ""
    place, problem = f"line {mark.line + 1}, column {mark.column + 1}", error.problem or "not YAML"
    found = next(iter(text.splitlines()[mark.line :]), "")[mark.column :][:1]  # empty at the end of the file
    begun = "" if opened is None else f"line {opened.line + 1}, column {opened.column + 1}"
    if duplicate := re.fullmatch(r"found duplicate key (.*)", problem):
        return f"{place}: the key {duplicate[1]} is in this mapping already. Allowed: each key once."
    if "cannot start any token" in problem:
        if found == "\t":
            return f"{place}: a tab. Allowed: spaces."
        return f"{place}: no value begins with {found or 'this character'}. Allowed: quotes around it."
    if alias := re.fullmatch(r"found undefined alias '?(.*?)'?", problem):
        return f"{place}: there is no &{alias[1]} before *{alias[1]}. Allowed: quotes around text that begins with *."
    if "expected a single document" in context:
        return f"{place}: a second document begins. Allowed: one document, without a line of ---."
    for kind, opening, closing in (("flow mapping", "{", "}"), ("flow sequence", "[", "]")):
        if kind in context and begun:
            return f"{begun}: this {opening} is not closed by a {closing} before {place}."
    if found in ("}", "]"):
        return f"{place}: this {found} closes no bracket. Allowed: matching brackets."
    if "flow node" in context:
        return f"{place}: a value, or the end of a {{ or [, is missing."
    if "quoted" in context and begun:
        return f"{begun}: this quote is not closed. Allowed: the same quote at both ends of a text."
    problem = " ".join(filter(None, (context, problem)))
    return f"{place}: {problem}. Allowed: YAML; the items of a mapping are key: value, all indented alike."


def _place(before: str) -> str:
    """Return the line and the column of what follows some text."""
    lines = before.split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"


def read_list(file: Path, folder: Path) -> list[object]:
    """Read a YAML file that holds a list; see `read_yaml`.

    Raises:
        UserError: see `read_yaml`; or the file holds something else.
    """
    loaded = read_yaml(file, folder=folder)
    if loaded and not isinstance(loaded, list):
        raise UserError(f"{file}: holds no list. Allowed: a YAML list.")
    return loaded if isinstance(loaded, list) else []


def check_yaml(text: str, file: Path) -> None:
    """Check that the values of a YAML file can be built safely; aliases count as what they repeat.

    Raises:
        UserError: the text or what it holds is too large, or nested too deeply.
        YAMLError: it is not YAML.
    """
    if len(text) > MAX_BYTES:
        raise UserError(f"{file}: {len(text):,} bytes. Allowed: a YAML file of at most {MAX_BYTES:,} bytes.")
    anchors: dict[str | None, _Extent] = {}
    around = [_Extent(None)]  # the collections around an event, the file itself first
    for event in _events(text):
        if isinstance(event, yaml.CollectionEndEvent):
            done = around.pop()
            anchors[done.anchor] = done
        elif isinstance(event, yaml.AliasEvent):
            # An alias inside the value that it names never ends; one of no value is refused when values are built.
            endless = event.anchor in [extent.anchor for extent in around]
            done = anchors.get(event.anchor, _Extent(None, values=MAX_VALUES if endless else 1))
        elif event.tag and "python" in event.tag:
            raise UserError(f"{file}: the tag {event.tag} is not allowed. Allowed: plain values.")
        elif isinstance(event, yaml.CollectionStartEvent):
            around.append(_Extent(event.anchor))
            done = None
        else:
            done = anchors[event.anchor] = _Extent(event.anchor)
        if done is not None:
            around[-1].values += done.values
            around[-1].depth = max(around[-1].depth, done.depth + 1)
        if sum(extent.values for extent in around) > MAX_VALUES:
            raise UserError(f"{file}: more than {MAX_VALUES:,} values, aliases included. Allowed: fewer.")
        if max(len(around), around[-1].depth) > MAX_DEPTH:
            raise UserError(f"{file}: nested more than {MAX_DEPTH} levels deep. Allowed: fewer.")


@dataclass
class _Extent:
    """How much a value holds, itself included, and how deeply it is nested."""

    anchor: str | None
    values: int = 1
    depth: int = 0


def _events(text: str) -> Iterator[yaml.NodeEvent | yaml.CollectionEndEvent]:
    kept = (yaml.NodeEvent, yaml.CollectionEndEvent)
    yield from (event for event in yaml.parse(text, Loader=_Loader) if isinstance(event, kept))
