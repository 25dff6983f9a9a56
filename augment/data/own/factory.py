"""Find an object of a user's own module by its name and call it; every mistake becomes one readable error."""

import importlib
import importlib.util
import inspect
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from augment.support.console import progress_bar
from augment.support.errors import UserError, nearest, suggest
from augment.support.own_code import describe_raised, import_own
from augment.support.text import amount

_LISTED = 20  # names that fit into a message


class ObjectName(str):
    """Stands for an object that no module has under a name, such as a local variable; in messages, its class."""

    found: object


def object_name(found: object) -> str:
    """Return a name from which `find_object` returns the object: "module.name", or an `ObjectName`."""
    name = f"{getattr(found, '__module__', None)}.{getattr(found, '__qualname__', None)}"
    if find_imported(name) is not found:
        name = ObjectName(getattr(found, "__qualname__", type(found).__name__))
        name.found = found
    return name


@dataclass(frozen=True)
class SequenceFactory:
    """Makes a user's sequence, in any process.

    Attributes:
        key: the setting that names it, "data.train".
        name: name of a function, class or object: "module.name", or an `ObjectName`.
        options: arguments of the function or class as JSON: a mapping for each setting that has some, by its key.
        workers: number of processes that read; 0: a thread of this process.
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
            UserError: there is no such object, it raises, or returns no sequence.
        """
        options: Mapping[str, Mapping[str, Any]] = json.loads(self.options)
        found = find_object(self.name, self.key)
        if _is_sequence(found) and not isinstance(found, type):
            if any(options.values()):
                raise UserError(f"{next(filter(options.get, options))}: {self.what} is not a function. Allowed: none.")
        elif not callable(found):
            raise UserError(f"{self.what}: is {describe(found)}. Allowed: a function, a class, a Dataset or a list.")
        else:
            found = call(found, options, self.what)
        from torch.utils.data import DataLoader, IterableDataset  # after errors that need no PyTorch

        if isinstance(found, DataLoader):
            raise UserError(f"{self.what}: gives a DataLoader. Allowed: its dataset; batches are made here.")
        if isinstance(found, IterableDataset):
            raise UserError(
                f"{self.what}: gives an IterableDataset, whose items have no index. "
                "Allowed: a map-style Dataset, with __len__ and __getitem__."
            )
        if not _is_sequence(found):
            if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
                raise UserError(
                    f"{self.what}: gives {describe(found)}. Allowed: pairs, (image, target), or a Dataset of them, "
                    "with __len__ and __getitem__."
                )
            items: list[object] = []
            with progress_bar() as progress, errors_of(self.what, lambda: f"after {amount(len(items), 'item')}: "):
                bar = progress.add_task(f"Reading {self.name}", total=None)
                for item in found:
                    if items and _memory(item) == _memory(items[-1]) is not None:
                        raise UserError(
                            f"{self.what}: items {len(items) - 1} and {len(items)} are the same array, which can hold "
                            "only one image. Allowed: a new array for each item."
                        )
                    items.append(item)
                    progress.advance(bar)
            found = items
        with errors_of(self.what, lambda: "its length: "):
            length = len(found)
        if not length:
            raise UserError(f"{self.what}: has no items.")
        sequence: Sequence[object] = found
        return sequence


@contextmanager
def errors_of(what: str, where: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn exceptions of a user's code into a `UserError`; `where` completes its message."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a script that exits would end this program silently
        raise UserError(f"{what}: {where()}{describe_raised(error)}") from error


def find_object(name: str, key: str) -> Any:
    """Import and return the object `module.name`.

    Args:
        name: name of the object; attributes of attributes and modules of packages are allowed.
        key: the setting that contains the name, for messages.

    Raises:
        UserError: there is no such module or object, or the module cannot be imported.
    """
    if isinstance(name, ObjectName):
        return name.found
    what = f"{key}={name}"
    path, *rest = name.split(".")
    if not rest or not all(part.isidentifier() for part in (path, *rest)):
        raise UserError(f"{what}: names no object of a module. Allowed: module.name.")
    found = _import(path, what)
    for part in rest:
        if not hasattr(found, part):
            if path == "__main__":  # which a process that reads has without these
                where = "what a notebook, or a script below `if __name__ == ...`, defines cannot be imported"
                raise UserError(f"{what}: {where}. Allowed: data.workers=0, or a name in a module.")
            if not hasattr(found, "__path__") or importlib.util.find_spec(f"{path}.{part}") is None:
                raise UserError(f"{what}: {path} has no '{part}'.{_suggest(part, found)}")
            _import(f"{path}.{part}", what)
        found, path = getattr(found, part), f"{path}.{part}"
    return found


def find_imported(name: str) -> object:
    """Return the object `module.name`, the one that it is a method of, or None if it is not imported."""
    if isinstance(name, ObjectName):
        return name.found
    path, *rest = name.split(".")
    found: object = sys.modules.get(path)
    for part in rest:
        found = getattr(found, part, None)
    return found.__self__ if inspect.ismethod(found) else found  # each access to a method makes another object


def call(function: Any, options: Mapping[str, Mapping[str, Any]], what: str) -> Any:
    """Call a user's function, or make an object of their class.

    Args:
        function: the function or class.
        options: its keyword arguments, by the key of their setting; later ones win.
        what: its name in messages, "data.train=my_data.train".

    Raises:
        UserError: it does not take these arguments, or raises.
    """
    with suppress(TypeError, ValueError):  # some functions written in C have no signature
        _check_options(inspect.signature(function), options, what)
    with errors_of(what):
        return function(**{name: value for given in options.values() for name, value in given.items()})


def describe(value: object) -> str:
    """Describe an object that should be something else."""
    name = type(value).__name__
    if name == "ndarray":
        return f"an array {getattr(value, 'shape', ())}"
    if isinstance(value, list | tuple | dict):
        return f"a {name} of {len(value)}"
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _import(module: str, what: str) -> ModuleType:
    with errors_of(what, lambda: f"importing {module}: "):
        try:
            return import_own(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise UserError(
                f"{what}: there is no module '{error.name}'.{nearest(error.name, _modules())} "
                "Looked for in the folder that the program was started in, PYTHONPATH and installed packages."
            ) from error


def _modules() -> Iterator[str]:
    """Yield the modules in the folders of the path, except for installed ones."""
    for name in sys.path:
        folder = Path(name or ".")
        if folder.is_dir() and "site-packages" not in folder.parts and folder != Path(sysconfig.get_path("stdlib")):
            yield from (file.stem for file in folder.glob("*.py"))
            yield from (file.parent.name for file in folder.glob("*/__init__.py"))


def _suggest(name: str, found: Any) -> str:
    own = isinstance(found, ModuleType)
    names = [
        known
        for known, value in vars(found).items()
        if not known.startswith("_")
        and not isinstance(value, ModuleType)
        and (not own or getattr(value, "__module__", found.__name__) == found.__name__)
    ] if hasattr(found, "__dict__") else []  # fmt: skip
    return suggest(name, names) if len(names) <= _LISTED else nearest(name, names)


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


def _memory(item: object) -> int | None:
    """Return where in memory the image of an item starts, None if it is not an array, or one that is read-only."""
    image = item[0] if isinstance(item, tuple | list) and item else None
    pointer = getattr(image, "data_ptr", None)  # of a tensor
    if pointer is not None:
        return int(pointer())
    return image.ctypes.data if isinstance(image, np.ndarray) and image.flags.writeable else None


def _is_sequence(found: object) -> bool:
    both = hasattr(found, "__len__") and hasattr(found, "__getitem__")
    return both and not isinstance(found, str | bytes | Mapping)
