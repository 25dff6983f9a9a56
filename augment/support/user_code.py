"""Import users' own code, such as plugins and datasets, and describe its errors with file and line."""

import importlib
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from augment.support.errors import UserError, first_line, nearest

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

# Folders of this project, whose code is not the user's own.
_OURS = tuple(f"{Path(__file__).parents[2] / package}/" for package in ("augment", "trainer"))
# DALI's form of an exception in a Python function: the message, then the call stack, the innermost call first.
_IN_DALI = re.compile(r"PythonFunction error: (?P<text>.+?)\n\s*At:\n(?P<lines>(?:\s+\S.*\(\d+\): .*\n?)+)", re.DOTALL)


class OwnCodeError(UserError):
    """A user's own code raised an exception. The message names the line."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: shorten the traceback of a user's mistake to the line with the call."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OwnCodeError:
            raise  # its cause shows the line
        except UserError as error:
            raise error.with_traceback(None) from None

    return call


def import_own(module: str, what: str) -> ModuleType:
    """Import a user's module from the current folder or Python's path. Errors begin with `what`."""
    if not {"", os.getcwd()} & set(sys.path):  # only `python -m` adds the current folder
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # a file may have been written a moment ago
    try:
        return importlib.import_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a script that exits would end this program silently
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise UserError(f"{what}: cannot import {module}: {describe_raised(error)}") from error
        near = nearest(missing, (file.stem for file in Path().glob("*.py")))
        raise UserError(
            f"{what}: cannot find the module '{missing}' in the current folder or on PYTHONPATH.{near}"
        ) from error


def reject_duplicate(what: str, name: str, first: object, second: object) -> None:
    """Reject a name that another module has declared, because the second declaration would replace the first."""
    if first is not None and first.__module__ != second.__module__:
        raise UserError(f"{what} '{name}' is declared in {first.__module__} and {second.__module__}. Rename yours.")


def registering(registry: dict[str, Any], what: str, name: str) -> Callable[[D], D]:
    """Return a decorator that adds a class or function to a registry by a name. See `reject_duplicate`."""

    def decorate(declared: D) -> D:
        reject_duplicate(what, name, registry.get(name), declared)
        registry[name] = declared
        return declared

    return decorate


def load_plugins(modules: tuple[str, ...], key: str) -> None:
    """Import the modules that a setting names. Their decorators register ops, callbacks and so on."""
    for module in modules:
        if "/" in module or module.endswith(".py"):
            raise UserError(
                f"{key}: {module} is a path. Did you mean '{Path(module).stem}'? Use the names of modules in the "
                "current folder or on PYTHONPATH."
            )
        import_own(module, key)


def describe_raised(error: BaseException) -> str:
    """Describe an exception and the line that led to it.

    This is the last line of the user's code. Without such a line, it is the last line of a package.
    """
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})."
    text = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
    lines = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if inside := _IN_DALI.search(str(error)):
        text = inside["text"].partition("\n")[0]
        lines = [(file, int(number)) for file, number in re.findall(r"\s+(\S.*)\((\d+)\): .*", inside["lines"])][::-1]
    elif isinstance(error, ValueError | TypeError) and lines and lines[-1][0].startswith(_OURS):
        text = first_line(error)  # one of our checks of a declaration
    lines = [line for line in lines if not line[0].startswith((*_OURS, "<")) and "/nvidia/dali/" not in line[0]]
    if not lines:
        return f"{text.rstrip('.')}."
    own_lines = [line for line in lines if not _is_installed(line[0])]
    file, number = (own_lines or lines)[-1]
    code = linecache.getline(file, number).strip()
    return f"{text.rstrip('.')} ({file}, line {number}{f': {code}' if code else ''})."


def describe_own(error: BaseException) -> str:
    """Describe an exception as `describe_raised` does. Return "" if the user's own code did not raise it."""
    if _IN_DALI.search(str(error)):
        return describe_raised(error)
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    last = next((file for file in reversed(files) if not (file.startswith("<") or _is_installed(file))), "")
    return describe_raised(error) if last and not last.startswith(_OURS) else ""


def reject_in_op(error: BaseException) -> None:
    """Raise an `OwnCodeError` for a DALI exception that the Python function of an op caused."""
    if _IN_DALI.search(str(error)):
        raise OwnCodeError(describe_raised(error)) from error


def _is_installed(file: str) -> bool:
    # A virtual environment may use packages that are installed elsewhere.
    return file.startswith(sysconfig.get_path("stdlib")) or bool(re.search(r"/(site|dist)-packages/", file))
