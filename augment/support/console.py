"""Consoles for text, and the progress bar of everything but training."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def text_console() -> Console:
    """Return a console on stdout for plain text: no markup, no highlighting, no wrapping."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def progress_bar(*further: ProgressColumn, quiet: bool = False) -> Progress:
    """Return a progress bar, a context manager that draws on stderr, on terminals only, and clears itself at the end.

    Args:
        further: columns that replace the count, for example those of a download.
        quiet: show nothing.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *(further or (MofNCompleteColumn(),)),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
