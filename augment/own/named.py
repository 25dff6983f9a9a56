"""An object of a user's own module: found by its name and called, and every mistake on the way said in a sentence."""

import importlib
import importlib.util
import inspect
import json
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from augment.errors import UserError, first_line, suggest
from augment.progress import progress_bar

_LISTED = 20  # names that fit into a message


@dataclass(frozen=True)
class Named:
    """What makes a sequence, in any process.

    Attributes:
        key: of the setting that names it, "data.train".
        name: of a function, class or object: "module.name".
        options: arguments of the function or class, as JSON: a mapping for each setting that has some, by its key.
        workers: processes that read; 0: a thread of this one.
    """

    key: str
    name: str
    options: str = "{}"
    workers: int = 0

    @property
    def what(self) -> str:
        """Key and name, for messages."""
        return f"{self.key}={self.name}"

    def make(self) -> Sequence[object]:
        """Return the sequence.

        Raises:
            UserError: there is no such object, it raises, or gives something else.
        """
        options: Mapping[str, Mapping[str, Any]] = json.loads(self.options)
        found = find_object(self.name, self.key)
        if _is_sequence(found) and not isinstance(found, type):
            if any(options.values()):
                raise UserError(f"{next(filter(options.get, options))}: {self.what} is no function. Allowed: none.")
            return self._checked(found)
        if not callable(found):
            raise UserError(f"{self.what}: is {describe(found)}. Allowed: a function, a class, a Dataset or a list.")
        return self._checked(call(found, options, self.what))

    def _checked(self, found: Any) -> Sequence[object]:
        from torch.utils.data import DataLoader, IterableDataset  # only who has one waits for PyTorch

        if isinstance(found, DataLoader):
            raise UserError(f"{self.what}: gives a DataLoader. Allowed: its dataset; batches are made here.")
        if isinstance(found, IterableDataset):
            raise UserError(
                f"{self.what}: gives an IterableDataset, whose items have no places. "
                "Allowed: a map-style Dataset, with __len__ and __getitem__."
            )
        if not _is_sequence(found):
            if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
                raise UserError(
                    f"{self.what}: gives {describe(found)}. Allowed: pairs, (picture, target), or a Dataset of them, "
                    "with __len__ and __getitem__."
                )
            found = self._all(found)
        try:
            length = len(found)
        except Exception as error:
            raise UserError(f"{self.what}: its length: {described(error)}") from error
        if not length:
            raise UserError(f"{self.what}: has no items.")
        sequence: Sequence[object] = found
        return sequence

    def _all(self, found: Iterable[object]) -> list[object]:
        """Return all that comes, as of a generator."""
        items: list[object] = []
        with progress_bar() as progress:
            bar = progress.add_task(f"Reading {self.name}", total=None)
            try:
                for item in found:
                    items.append(item)
                    progress.advance(bar)
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"{self.what}: after {len(items)} items: {described(error)}") from error
        return items


def find_object(name: str, key: str) -> Any:
    """Return what `module.name` or `module:name` means, imported as plugins are.

    Args:
        name: of the object; attributes of attributes, and modules of packages, may be named too.
        key: of the setting that holds the name, for messages.

    Raises:
        UserError: there is no such module or object, or the module cannot be imported.
    """
    what = f"{key}={name}"
    module, colon, attributes = name.partition(":")
    parts = [*module.split("."), *(attributes.split(".") if colon else ())]
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UserError(f"{what}: names no object of a module. Allowed: module.name, or module:name.")
    importlib.invalidate_caches()  # a file may have been written a moment ago
    if colon:
        found, path, rest = _import(module, what), module, attributes.split(".")
    else:
        found, path, rest = _import(parts[0], what), parts[0], parts[1:]
    for part in rest:
        if not hasattr(found, part):
            submodule = isinstance(found, ModuleType) and hasattr(found, "__path__") and not colon
            if not submodule or not _is_module(f"{path}.{part}"):
                raise UserError(f"{what}: {path} has no '{part}'.{_suggest(part, found)}")
            _import(f"{path}.{part}", what)
        found, path = getattr(found, part), f"{path}.{part}"
    return found


def call(function: Any, options: Mapping[str, Mapping[str, Any]], what: str) -> Any:
    """Call a user's function, or make an object of their class.

    Args:
        function: what is called.
        options: its keyword arguments, by the key of the setting that holds them; later ones win.
        what: it is called in messages, "data.train=my_data.train".

    Raises:
        UserError: it takes other arguments, or raises.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C, some of these do not tell
        signature = None
    if signature is not None:
        _check_options(signature, options, what)
    try:
        return function(**{name: value for given in options.values() for name, value in given.items()})
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {described(error)}") from error


def describe(value: object) -> str:
    """Say what something is that should be something else."""
    name = type(value).__name__
    if name == "ndarray":
        return f"an array {getattr(value, 'shape', ())}"
    if isinstance(value, list | tuple | dict):
        return f"a {name} of {len(value)}"
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def described(error: BaseException) -> str:
    """Say what a user's code raised, and where: the last line of it that is no installed package's."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})."
    text = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
    place = _place(error)
    return f"{text.rstrip('.')}{f' ({place})' if place else ''}."


def _place(error: BaseException) -> str:
    # What runpy and importlib do on the way is no place, nor is this package.
    ours, installed = (
        str(Path(__file__).parents[1]),
        tuple({sysconfig.get_path(n) for n in ("stdlib", "purelib", "platlib")}),
    )
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((ours, "<frozen"))]
    theirs = [f for f in frames if not f.filename.startswith(installed)] or frames
    if not theirs:
        return ""
    line = linecache.getline(theirs[-1].filename, theirs[-1].lineno or 0).strip()
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}{f': {line}' if line else ''}"


def _import(module: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"{what}: importing {module}: {described(error)}") from error
        near = get_close_matches(error.name, _modules(), n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UserError(
            f"{what}: there is no module '{error.name}'.{hint} "
            "Looked for in the folder that the program was started in, PYTHONPATH and what is installed."
        ) from error
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a program that was imported ends, and would end this one in silence
        raise UserError(f"{what}: importing {module}: {described(error)}") from error


def _is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _modules() -> Iterator[str]:
    """Yield the modules that lie openly in the folders of the path, not those that are installed."""
    for folder in sys.path:
        place = Path(folder or ".")
        if not place.is_dir() or "site-packages" in place.parts or place == Path(sysconfig.get_path("stdlib")):
            continue
        yield from (file.stem for file in place.glob("*.py"))
        yield from (file.parent.name for file in place.glob("*/__init__.py"))


def _suggest(name: str, found: Any) -> str:
    own = isinstance(found, ModuleType)
    names = [
        known
        for known, value in vars(found).items()
        if not known.startswith("_")
        and not isinstance(value, ModuleType)
        and (not own or getattr(value, "__module__", found.__name__) == found.__name__)
    ] if hasattr(found, "__dict__") else []  # fmt: skip
    if len(names) <= _LISTED:
        return suggest(name, names)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def _check_options(signature: inspect.Signature, options: Mapping[str, Mapping[str, Any]], what: str) -> None:
    params = signature.parameters.values()
    named = {p.name: p for p in params if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known = {(key, name) for key, given in options.items() for name in given}
    if not any(p.kind == p.VAR_KEYWORD for p in params):
        for key, name in sorted(known):
            if name not in named:
                raise UserError(f"{key}.{name}: {what} takes no such argument.{suggest(name, named)}")
    missing = [name for name, p in named.items() if p.default is p.empty and name not in {n for _, n in known}]
    if missing:
        raise UserError(f"{next(iter(options))}.{missing[0]}: missing, for {what} needs it: {signature}.")


def _is_sequence(found: object) -> bool:
    both = hasattr(found, "__len__") and hasattr(found, "__getitem__")
    return both and not isinstance(found, str | bytes | Mapping)
