"""Parse the command lines of all programs, and turn errors into readable messages and exit codes."""

import logging
import math
import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from augment.cli.config_files import CONFIG_DIR_FLAG, CONFIG_DIR_HELP, describe_origin, set_config_dir
from augment.cli.overrides import explain
from augment.params import Choice, Count, Number, Param
from augment.support.errors import UserError, nearest
from augment.support.formatting import clip, printable
from augment.support.user_code import OwnCodeError, describe_own

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

# Exit codes: an error in the user's own code, a user's mistake, and Ctrl-C or a similar signal, as in shells.
FAILED, USAGE, INTERRUPTED = 1, 2, 130

TRUST_FLAG = "--trust"

# Names of flags in other programs, and our flags.
_MEANT = {
    **dict.fromkeys(("draw", "save", "show", "visualize"), "overlay"),
    **dict.fromkeys(("fp16", "format", "half", "int8", "quantize"), "variants"),
    **dict.fromkeys(("conf", "confidence", "score"), "threshold"),
}

_MAX_MESSAGE = 4000  # maximum length of a message in characters. Some messages quote long values or files


class PrintableFormatter(logging.Formatter):
    """A log format without control characters, see `printable`."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn exceptions into a message on stderr and an exit code: `USAGE`, `FAILED` or `INTERRUPTED`."""
    if logging.lastResort is not None:  # this handler prints the warnings of tools
        logging.lastResort.setFormatter(PrintableFormatter())
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if (explained := _explained(error)) is None:
            raise
        text, code = explained
        with suppress(UserError):
            text += describe_origin(re.split("[=: ]", text)[0], sys.argv[1:])
        if len(text) > _MAX_MESSAGE:  # keep the end, where the remedy is
            text = f"{text[: _MAX_MESSAGE // 2]} ... {text[-_MAX_MESSAGE // 2 :]}"
        sys.stderr.write(f"error: {printable(text)}\n")
        raise SystemExit(code) from None


def _explained(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code for an error, or None if the error is a bug."""
    if isinstance(error, UserError):
        return str(error).strip(), FAILED if isinstance(error, OwnCodeError) else USAGE
    if isinstance(error, HydraException | OmegaConfBaseException):
        return explain(error), USAGE
    if isinstance(error, FileNotFoundError) and not os.path.exists(os.readlink("/proc/self/cwd")):
        return "the current folder was deleted. Start the command in a folder that exists.", USAGE
    if text := describe_own(error):
        return text, FAILED
    if isinstance(error, OSError) and error.filename is not None:  # such as a missing permission or a full disk
        return f"{clip(str(error.filename), 100)}: {error.strerror}.", USAGE
    return None


class Parser(ArgumentParser):
    """Parses the flags of a module that `python -m` runs. Every other argument is an override.

    Args:
        module: the module, as after `python -m`.
        description: a text for `--help`.
        examples: command lines or their arguments, with explanations, also for `--help`.
        arguments: the arguments other than flags, for the usage line.
    """

    def __init__(
        self, module: str, description: str, examples: str, *, arguments: str = "[aug=NAME] [key=value ...]"
    ) -> None:
        self._flags: list[str] = []
        heading = "examples" if f"python -m {module} " in examples else "examples of arguments"
        super().__init__(
            prog=f"python -m {module}",
            usage=" ".join(filter(None, (f"python -m {module}", arguments, "[flags]"))),
            description=description,
            epilog=f"{heading}:\n{examples}",
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        # A word of the usage is a path, unless it is in brackets. Three dots allow any number of paths.
        words = arguments.removesuffix("[key=value ...]").split()
        self._least, self._most = sum(word[0] not in "[." for word in words), len(words)
        if any("..." in word for word in words):
            self._most = sys.maxsize
        self._settings = " Settings are key=value, without dashes." if "key=value" in arguments else ""
        if self._settings:
            self.add_argument(CONFIG_DIR_FLAG, "-cd", metavar="DIR", help=CONFIG_DIR_HELP)

    def add_argument(self, *names: str, **options: Any) -> Action:
        """Add a flag. Messages about unknown flags list it."""
        if options.get("help") != SUPPRESS:
            self._flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def add_trust_flag(self) -> None:
        """Add the flag that lets a run folder set everything. See `augment.cli.trust`."""
        doc = "let the run folder choose imports, downloads and environment variables. Use it only for your own runs"
        self.add_argument(TRUST_FLAG, action="store_true", help=doc)

    def error(self, message: str) -> NoReturn:
        """Raise the message as a UserError, for `readable_errors`."""
        raise UserError(f"{message.rstrip('.')}.")

    def meant(self, flag: str, after: str) -> str:
        """Return a " Did you mean ...?" for an unknown flag, with or without `=value`. `after` is the next argument."""
        # Compare without dashes, because these make all flags similar.
        word = flag.partition("=")[0].lstrip("-")
        near = nearest(_MEANT.get(word, word), [name[2:] for name in self._flags])
        return near.replace("'", "'--", 1)

    def split(self, arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
        """Return the values of the flags, and the overrides. From now on, also search `--config-dir`."""
        options, rest = self.parse_known_args(arguments)
        for token, after in zip(rest, [*rest, ""][1:], strict=True):
            if token.startswith("-"):
                allowed = f"{', '.join(sorted(self._flags))}.{self._settings}"
                flag = token.partition("=")[0]
                raise UserError(f"{flag}: unknown flag.{self.meant(token, after)} Allowed: {allowed}")
        if self._settings:
            set_config_dir(options.config_dir)
        return options, rest

    def split_paths(self, arguments: Sequence[str]) -> tuple[Namespace, list[Path], list[str]]:
        """Return the values of the flags, the paths, and the overrides. An override contains = and is not a file."""
        options, rest = self.split(arguments)
        paths = [token for token in rest if "=" not in token or Path(token).exists()]
        overrides = [token for token in rest if token not in paths]
        if self._least and not paths:
            self.print_help()
            raise SystemExit(USAGE)
        if overrides and not self._settings:
            raise UserError(f"{overrides[0]}: no such file or folder, and no settings are allowed. Usage: {self.usage}")
        if not self._least <= len(paths) <= self._most:
            raise UserError(f"{' '.join(paths)}: wrong number of arguments. Usage: {self.usage}")
        return options, [Path(token) for token in paths], overrides


def table_console() -> "Console":
    """Return a console for tables. In a file or a pipe, tables get their full width, so that no name is cut."""
    from augment.support.console import PlainConsole  # a slow import

    return PlainConsole(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100_000)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an OSError while writing into a UserError. `what` names the file, or the flag and its file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: cannot be written: {error.strerror or error}. Use another path.") from error


def png_file(text: str) -> Path:
    """Convert a flag's value to the path of a PNG file. Pass this function as the flag's `type`."""
    path = Path(text)
    if path.suffix.lower() != ".png" or path.is_dir():
        raise ArgumentTypeError(f"'{text}' is not allowed. Use a file name that ends in .png")
    return output(text)


def output(text: str) -> Path:
    """Convert a flag's value to the path of an output file or folder. Pass this function as the flag's `type`.

    A path that cannot be written raises an error before the work starts.
    """
    path = Path(text)
    existing = next(some for some in (path.absolute(), *path.absolute().parents) if some.exists())
    if existing != path.absolute() and not existing.is_dir():
        raise ArgumentTypeError(f"{text} cannot be created, because {existing} is not a folder. Use another path")
    if not os.access(existing, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written, because {existing} is not writable. Use another path")
    return path


def output_file(text: str) -> str:
    """Validate a flag's value: a path that `output` accepts and that is no folder, or - for standard output.

    Pass this function as the flag's `type`.
    """
    if text != "-" and output(text).is_dir():
        raise ArgumentTypeError(f"{text} is a folder. Use a file name")
    return text


def one_of(*names: str) -> Callable[[str], str | None]:
    """Return a `type` for flags that take one of a few names."""
    return _type(Choice(options=names, doc=""))


def whole_number(low: int, high: float = math.inf) -> Callable[[str], int | None]:
    """Return a `type` for flags that take a whole number from `low` to `high`."""
    return _type(Count(within=(low, high), doc=""))


def positive_number(most: float = math.inf) -> Callable[[str], float | None]:
    """Return a `type` for flags that take a number above 0 and up to `most`."""
    return _type(Number(above=0, within=(0, most), doc=""))


def _type(param: Param[T]) -> Callable[[str], T | None]:
    """Return a `type` for flags whose values are validated like a setting."""

    def convert(text: str) -> T | None:
        value: object = text
        # A whole number becomes an int, and any other number a float.
        for number in () if isinstance(param, Choice) else (float, int):
            with suppress(ValueError):
                value = number(text)
        try:
            return param.parse(value, "")
        except UserError as error:
            raise ArgumentTypeError(str(error).removeprefix(": ")) from error

    return convert


def add_measuring_flags(parser: Parser) -> None:
    """Add the flags that all benchmarks share."""
    parser.add_argument("--rounds", type=whole_number(1), default=5, metavar="N", help="number of rounds (default: 5)")
    parser.add_argument(
        "--seconds",
        type=positive_number(3600),
        default=3.0,
        metavar="S",
        help="approximate time of each row in a round (default: 3)",
    )
    parser.add_argument(
        "--out", type=output, metavar="DIR", help="folder for the JSON file (default: outputs/bench-TIME)"
    )
