"""Find an object of a user's own module by its name and call it; every mistake becomes one readable error."""

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from augment.support.errors import UserError, suggest
from augment.support.user_code import describe_raised, import_own


class ObjectName(str):
    """Stands for an object that no module has under a name, such as a local variable; in messages, its class."""

    found: object

    def __repr__(self) -> str:
        return f"{self} at {id(self.found)}"


def object_name(found: object) -> str:
    """Return a name from which `find_object` returns the object: "module.name", or an `ObjectName`."""
    module, path = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    there: object = sys.modules.get(str(module))
    for part in str(path).split("."):
        there = getattr(there, part, None)
    if there is found:
        return f"{module}.{path}"
    name = ObjectName(path or type(found).__name__)
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
            found = self._call(found, options)
        if not _is_sequence(found):
            allowed = "a list of pairs, (image, target), or a Dataset of them, with __len__ and __getitem__"
            raise UserError(f"{self.what}: gives {describe(found)}. Allowed: {allowed}; batches are made here.")
        with errors_of(self.what, lambda: "its length: "):
            length = len(found)
        if not length:
            raise UserError(f"{self.what}: has no items.")
        return cast("Sequence[object]", found)

    def _call(self, function: Any, options: Mapping[str, Mapping[str, Any]]) -> Any:
        """Call the function, or make an object of the class; of options with the same name, later ones win."""
        with suppress(TypeError, ValueError):  # some functions written in C have no signature
            params = inspect.signature(function).parameters
            if not any(param.kind == param.VAR_KEYWORD for param in params.values()):
                for key, name in [(key, name) for key, given in options.items() for name in given]:
                    if name not in params:
                        end = f"{self.what} takes no such argument.{suggest(name, params)}"
                        raise UserError(f"{key}.{name}: {end}")
        with errors_of(self.what):
            return function(**{name: value for given in options.values() for name, value in given.items()})


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
    """Import and return the object `module.name`; attributes of attributes and modules of packages are allowed.

    Raises:
        UserError: there is no such module or object, or the module cannot be imported.
    """
    if isinstance(name, ObjectName):
        return name.found
    what = f"{key}={name}"
    path, *rest = name.split(".")
    if not rest or not all(part.isidentifier() for part in (path, *rest)):
        raise UserError(f"{what}: names no object of a module. Allowed: module.name.")
    found: Any = import_own(path, what)
    for part in rest:
        if not hasattr(found, part):
            if path == "__main__":  # which a process that reads has without these
                where = "what a notebook, or a script below `if __name__ == ...`, defines cannot be imported"
                raise UserError(f"{what}: {where}. Allowed: data.workers=0, or a name in a module.")
            own = [name for name, value in vars(found).items() if getattr(value, "__module__", path) == path]
            if not hasattr(found, "__path__") or importlib.util.find_spec(f"{path}.{part}") is None:
                raise UserError(f"{what}: {path} has no '{part}'.{suggest(part, own)}")
            import_own(f"{path}.{part}", what)
        found, path = getattr(found, part), f"{path}.{part}"
    return found


def describe(value: object) -> str:
    """Describe an object that should be something else."""
    name = type(value).__name__
    if name == "ndarray":
        return f"an array {getattr(value, 'shape', ())}"
    if isinstance(value, list | tuple | dict):
        return f"a {name} of {len(value)}"
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _is_sequence(found: object) -> bool:
    both = hasattr(found, "__len__") and hasattr(found, "__getitem__")
    return both and not isinstance(found, str | bytes | Mapping)
