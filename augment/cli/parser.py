"""Parse the command lines of all programs: flags next to overrides, readable errors, exit codes."""

import logging
import math
import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENAMETOOLONG
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from augment.cli.conf import CONFIG_DIR_FLAG, CONFIG_DIR_HELP, set_config_dir
from augment.cli.explanation import explain
from augment.support.errors import UserError, nearest, suggest
from augment.support.own_code import OwnCodeError, describe_own
from augment.support.text import printable
from augment.support.yaml_files import describe_slip

if TYPE_CHECKING:
    from rich.console import Console

FAILED = 1  # exit code of an error in a user's own code
USAGE = 2  # exit code of a user's mistake
INTERRUPTED = 130  # exit code of what Ctrl-C or another signal interrupted, as in shells after Ctrl-C

_WIDE = 100_000  # columns of a table in a file or a pipe


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a user's mistake into one message and exit code 2, an error of their code into 1, and Ctrl-C into 130."""
    if logging.lastResort is not None:  # prints the warnings of tools
        logging.lastResort.setFormatter(_Printable())
    try:
        yield
    except OwnCodeError as error:
        sys.stderr.write(f"error: {printable(str(error))}\n")
        raise SystemExit(FAILED) from None
    except UserError as error:
        sys.stderr.write(f"error: {printable(str(error)).strip()}\n")
        raise SystemExit(USAGE) from None
    except (HydraException, OmegaConfBaseException) as error:
        sys.stderr.write(f"error: {printable(explain(error))}\n")
        raise SystemExit(USAGE) from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        sys.stderr.write(printable(f"error: {mark.name if mark else 'a configuration file'}: {describe_slip(error)}\n"))
        raise SystemExit(USAGE) from None
    except OSError as error:
        if error.errno != ENAMETOOLONG:
            raise
        sys.stderr.write(printable(f"error: {str(error.filename)[:40]}...: {error.strerror}.\n"))
        raise SystemExit(USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if not (own := describe_own(error)):
            raise
        sys.stderr.write(f"error: {printable(own)}\n")
        raise SystemExit(FAILED) from None


class Parser(ArgumentParser):
    """A program's own flags; every other argument is an override.

    Args:
        module: the program, as after `python -m`.
        description: what it does.
        examples: command lines with explanations, for --help.
        arguments: arguments other than flags, for its usage.
    """

    def __init__(
        self, module: str, description: str, examples: str, *, arguments: str = "[+aug=NAME] [key=value ...]"
    ) -> None:
        super().__init__(
            prog=f"python -m {module}",
            usage=" ".join(filter(None, (f"python -m {module}", arguments, "[flags]"))),
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._settings = " Settings are key=value, without dashes." if "key=value" in arguments else ""
        if self._settings:
            self.add_argument(CONFIG_DIR_FLAG, metavar="DIR", help=CONFIG_DIR_HELP)

    def error(self, message: str) -> NoReturn:
        """Raise the message as a UserError, for `readable_errors`."""
        raise UserError(message)

    def split(self, arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
        """Return the values of the flags, and the overrides; config files are searched in --config-dir from now on.

        Raises:
            UserError: a flag is unknown, lacks its value, or has one that is not allowed.
        """
        options, rest = self.parse_known_args(arguments)
        for token in rest:
            if token.startswith("-"):
                flag = token.split("=")[0]
                flags = self._option_string_actions.items()
                known = sorted(name for name, action in flags if name[:2] == "--" and action.help != SUPPRESS)
                # Without the dashes, which make all flags resemble each other.
                hint = nearest(flag.lstrip("-"), (name[2:] for name in known)).replace("'", "'--", 1)
                raise UserError(f"{flag}: unknown flag.{hint} Allowed: {', '.join(known)}.{self._settings}")
        set_config_dir(getattr(options, "config_dir", None))
        return options, rest

    def split_paths(self, arguments: Sequence[str]) -> tuple[Namespace, list[Path], list[str]]:
        """Return the values of the flags, the paths, and the overrides: what has an = in it and does not exist.

        Raises:
            UserError: see `split`.
        """
        options, rest = self.split(arguments)
        paths = [token for token in rest if "=" not in token or Path(token).exists()]
        return options, [Path(token) for token in paths], [token for token in rest if token not in paths]


def flags_in(arguments: Sequence[str]) -> set[str]:
    """Return the flags among arguments, without their values."""
    return {token.split("=")[0] for token in arguments if token.startswith("--")}


def table_console() -> "Console":
    """Return a console for tables; in a file or a pipe they are as wide as necessary, so that no name is cut."""
    from augment.support.console import PlainConsole  # takes a while to import

    return PlainConsole(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn errors of writing into a UserError that names `what`: a flag with its file, or a file.

    Raises:
        UserError: raised in place of an OSError.
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
    """Convert a flag's value to a file or folder that can be created or written to, as a `type` for it.

    This is checked before the work starts, not when its result is written.
    """
    path = Path(text)
    there = next(some for some in (path.absolute(), *path.absolute().parents) if some.exists())
    if there != path.absolute() and not there.is_dir():
        raise ArgumentTypeError(f"{text} cannot be made: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written: {there} may not be written to")
    return path


def one_of(*names: str) -> Callable[[str], str]:
    """Return a `type` for a flag that takes one of a few names; its error suggests the nearest one."""

    def convert(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"unknown name '{text}'.{suggest(text, names)}")
        return text

    return convert


def positive_number(below: float = math.inf) -> Callable[[str], float]:
    """Return a `type` for a flag that takes a number above 0 and below another."""

    def convert(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < below:
            limit = "" if below == math.inf else f" and below {below:g}"
            raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a number above 0{limit}")
        return number

    return convert


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a `type` for a flag that takes a whole number from `low` to `high`, or of at least `low`."""

    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
            allowed = f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"
            raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a whole number {allowed}")
        return int(text)

    return convert


def add_measuring_flags(parser: Parser) -> None:
    """Add the flags that all benchmarks share."""
    parser.add_argument(
        "--rounds", type=whole_number(1), default=5, metavar="N", help="how often each row runs (default: 5)"
    )
    parser.add_argument(
        "--seconds",
        type=positive_number(below=3600),
        default=3.0,
        metavar="S",
        help="how long each row runs in a round, about (default: 3)",
    )
    parser.add_argument(
        "--out", type=output, metavar="DIR", help="folder for the JSON file and the chart (default: outputs/bench-TIME)"
    )
