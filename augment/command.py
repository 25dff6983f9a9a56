"""What the command lines of all programs have in common: flags beside overrides, readable errors, exit codes."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from augment.errors import UserError, suggest

if TYPE_CHECKING:
    from rich.console import Console

USAGE = 2  # exit code of a user's mistake
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it

_WIDE = 100_000  # columns of what has none


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a user's mistake into one message and exit code 2, and Ctrl-C into exit code 130."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        sys.stderr.write(f"error: {str(error).strip()}\n")
        raise SystemExit(USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


class Parser(ArgumentParser):
    """A program's own flags; every other argument is an override.

    Args:
        module: name of the program, as after `python -m`.
        description: what it does.
        examples: command lines to show in --help, with what they do.
        arguments: what it takes besides flags, for its usage.
    """

    def __init__(
        self, module: str, description: str, examples: str, *, arguments: str = "[+aug=NAME] [key=value ...]"
    ) -> None:
        super().__init__(
            prog=f"python -m {module}",
            usage=f"python -m {module} {arguments} [flags]",
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Leave the message to `readable_errors`."""
        raise UserError(message)

    def split(self, arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
        """Return the values of the flags, and the overrides.

        Raises:
            UserError: an unknown flag, one without its value, or a value that it refuses.
        """
        options, rest = self.parse_known_args(arguments)
        for token in rest:
            if token.startswith("-"):
                flag = token.split("=")[0]
                known = [name for name in self._option_string_actions if name.startswith("--")]
                raise UserError(f"{flag}: unknown flag.{suggest(flag, known)}")
        return options, rest

    def split_paths(self, arguments: Sequence[str]) -> tuple[Namespace, list[Path], list[str]]:
        """Return the values of the flags, the paths, and the overrides: what has an = in it and does not exist.

        Raises:
            UserError: as `split`.
        """
        options, rest = self.split(arguments)
        paths = [token for token in rest if "=" not in token or Path(token).exists()]
        return options, [Path(token) for token in paths], [token for token in rest if token not in paths]


def table_console() -> "Console":
    """Return a console for tables, which in a file or a pipe are as wide as they need: names of files stay whole."""
    from rich.console import Console  # takes a while

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Say what cannot be written: a flag with its file, or a file.

    Raises:
        UserError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {error.strerror or error}.") from error


def png_file(text: str) -> Path:
    """Convert a flag's value to the name of a PNG file, as a `type` for it."""
    path = Path(text)
    if path.suffix.lower() != ".png" or path.is_dir():
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: the name of a file that ends in .png")
    return output(text)


def output(text: str) -> Path:
    """Convert a flag's value to a file or folder that can be made or written to, as a `type` for it.

    It is asked for before the work whose result is written, not after it.
    """
    path = Path(text)
    there = next(some for some in (path.absolute(), *path.absolute().parents) if some.exists())
    if there != path.absolute() and not there.is_dir():
        raise ArgumentTypeError(f"{text} cannot be made: {there} is no folder")
    if not os.access(there, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written: {there} may not be written to")
    return path


def one_of(*names: str) -> Callable[[str], str]:
    """Return a `type` for a flag that takes one of a few names; its error has the nearest one."""

    def convert(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"unknown name '{text}'.{suggest(text, names)}")
        return text

    return convert
