"""Find an object of the user's module by its name, and call it. Each mistake raises one readable error."""

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
    """The name of an object that cannot be imported, such as a local variable. Messages show its name or class."""

    found: object

    def __repr__(self) -> str:
        return f"{self} at {id(self.found)}"


def object_name(found: object) -> str:
    """Return the name by which `find_object` finds an object: "module.name", or an `ObjectName`."""
    module, path = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    importable: object = sys.modules.get(str(module))
    for part in str(path).split("."):
        importable = getattr(importable, part, None)
    if importable is found:
        return f"{module}.{path}"
    name = ObjectName(path or type(found).__name__)
    name.found = found
    return name


@dataclass(frozen=True)
class SequenceFactory:
    """Creates the user's sequence in any process.

    Attributes:
        key: the setting that names it, such as "data.train".
        name: the name of a function, class or object: "module.name", or an `ObjectName`.
        options: the arguments of the function or class as JSON: a mapping for each setting, by its key.
        workers: the number of processes that read, or 0 for a thread of this process.
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
            UserError: the object is missing, raises an exception, or does not return a sequence.
        """
        options: Mapping[str, Mapping[str, Any]] = json.loads(self.options)
        found = find_object(self.name, self.key)
        if _is_sequence(found) and not isinstance(found, type):
            if any(options.values()):
                key = next(filter(options.get, options))
                raise UserError(f"{key}: {self.what} is not a function and takes no arguments. Remove {key}.")
        elif not callable(found):
            raise UserError(f"{self.what} is {describe(found)}. Allowed: a function, a class, a Dataset or a list.")
        else:
            found = self._call(found, options)
        if not _is_sequence(found):
            raise UserError(
                f"{self.what} returns {describe(found)}. Return a list of pairs, (image, target), or a Dataset of them "
                "with __len__ and __getitem__, without batches."
            )
        with errors_of(self.what, lambda: "its length: "):
            length = len(found)
        if not length:
            raise UserError(f"{self.what} has no items. Return at least one pair.")
        return cast("Sequence[object]", found)

    def _call(self, function: Any, options: Mapping[str, Mapping[str, Any]]) -> Any:
        """Call the function or class. If options repeat a name, the later value counts."""
        with suppress(TypeError, ValueError):  # some functions written in C have no signature
            params = inspect.signature(function).parameters
            takes_any = any(param.kind == param.VAR_KEYWORD for param in params.values())
            unknown = [(key, name) for key, given in options.items() for name in given if name not in params]
            if unknown and not takes_any:
                key, name = unknown[0]
                raise UserError(f"{key}.{name}: {self.what} has no such argument.{suggest(name, params)}")
        with errors_of(self.what):
            return function(**{name: value for given in options.values() for name, value in given.items()})


@contextmanager
def errors_of(what: str, where: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn an exception of the user's code into a `UserError`. `where` returns its position, for the message."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a script that calls exit() would end this program silently
        raise UserError(f"{what}: {where()}{describe_raised(error)}") from error


def find_object(name: str, key: str) -> Any:
    """Import and return the object `module.name`. Nested attributes and submodules also work.

    Raises:
        UserError: the module or object is missing, or the module cannot be imported.
    """
    if isinstance(name, ObjectName):
        return name.found
    what = f"{key}={name}"
    path, *rest = name.split(".")
    if not rest or not all(part.isidentifier() for part in (path, *rest)):
        raise UserError(f"{what} does not name an object of a module. Use the form module.name.")
    found: Any = import_own(path, what)
    for part in rest:
        if not hasattr(found, part):
            if path == "__main__":  # worker processes lack what a notebook or script defines
                raise UserError(
                    f"{what}: worker processes cannot import names from a notebook, or below a script's "
                    "`if __name__ == ...`. Set data.workers=0, or move it into a module."
                )
            own = [name for name, value in vars(found).items() if getattr(value, "__module__", path) == path]
            if not hasattr(found, "__path__") or importlib.util.find_spec(f"{path}.{part}") is None:
                raise UserError(f"{what}: {path} has no '{part}'.{suggest(part, own)}")
            import_own(f"{path}.{part}", what)
        found, path = getattr(found, part), f"{path}.{part}"
    return found


def describe(value: object) -> str:
    """Describe an object in a message."""
    name = type(value).__name__
    if name == "ndarray":
        return f"an array {getattr(value, 'shape', ())}"
    if isinstance(value, list | tuple | dict):
        return f"a {name} of {len(value)}"
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _is_sequence(found: object) -> bool:
    both = hasattr(found, "__len__") and hasattr(found, "__getitem__")
    return both and not isinstance(found, str | bytes | Mapping)
