"""Consoles for plain text, and the progress bar for all work except training."""

import errno
from collections.abc import Iterable
from importlib.util import find_spec
from textwrap import fill
from typing import Any

from rich import progress
from rich.console import Console
from rich.segment import Segment

from augment.support.formatting import printable
from augment.support.process import discard_output


class PlainConsole(Console):
    """A console without markup. Names from files cannot move its cursor, see `printable`.

    In a notebook, it prints plain text, because rich would put each line into an output of its own.
    """

    def __init__(self, *, force_jupyter: bool | None = False, **options: Any) -> None:
        super().__init__(markup=False, force_jupyter=force_jupyter, **options)

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be redrawn. FORCE_COLOR does not count: notebooks and CI set it for plain output."""
        return self.is_jupyter or self.file.isatty()

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Return the segments to print. Only the console itself may add control characters."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: the terminal was closed
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Discard further output, so that a run continues after its reader, such as `head` or a terminal, has ended."""
        self.quiet = True
        discard_output(self.file.fileno())


def text_console() -> Console:
    """Return a console on stdout for plain text, without highlighting or wrapping."""
    return PlainConsole(highlight=False, soft_wrap=True)


def print_plan(console: Console, plan: str) -> None:
    """Print a plan. On a terminal, the rest of a long line is indented. Otherwise, each step has one line."""
    for line in plan.splitlines():
        if console.is_terminal:
            line = fill(line, console.width, subsequent_indent=" " * 8, break_on_hyphens=False)
        console.print(line, highlight=False, soft_wrap=True)


def progress_bar(*, quiet: bool = False, sized: bool = False) -> progress.Progress:
    """Return a progress bar on stderr that is cleared at the end.

    It is shown on terminals, and in notebooks with ipywidgets.

    Args:
        quiet: whether to hide the bar.
        sized: whether the total is a number of bytes.
    """
    console = PlainConsole(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False)
    counts = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if sized else (progress.MofNCompleteColumn(),)
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *counts, progress.TimeRemainingColumn())
    hidden = quiet or not console.is_terminal
    return progress.Progress(*columns, console=console, transient=True, disable=hidden)
