"""The bar of everything that takes a while and is no training."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(*further: ProgressColumn, quiet: bool = False) -> Progress:
    """Return a bar on stderr that is shown on a terminal only and gone afterwards; a context.

    Args:
        further: columns in place of the count, as of a download.
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
