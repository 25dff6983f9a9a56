"""The style of all figures of a run.

Text is drawn with fonts that have its characters; characters that no font has are drawn as their code points.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock

from matplotlib.figure import Figure

from augment.drawing import text
from augment.drawing.text import BLUE, DPI, GRAY, save_figure

SPLITS = (("train", GRAY), ("val", BLUE))
TEXT, SMALL = 10, 9  # points
# Matplotlib's font caches are shared by all threads.
LOCK = Lock()


frame = partial(text.frame, points=TEXT)


@contextmanager
def new_figure(path: Path, *, constrained: bool = True) -> Iterator[Figure]:
    """Yield an empty figure to draw on, and save it as a PNG at the end."""
    with LOCK:
        figure = Figure(dpi=DPI, layout="constrained" if constrained else None)
        yield figure
        save_figure(figure, path, DPI, parents=False)  # a run's folder that was deleted is not made again
