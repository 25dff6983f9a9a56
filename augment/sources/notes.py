"""What is said in the log while data are loaded: kept, for whoever finds them loaded already and logs elsewhere."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from logging import INFO, Handler, LogRecord, getLogger

_PACKAGE = __name__.partition(".")[0]


@contextmanager
def kept_notes() -> Iterator[list[LogRecord]]:
    """Keep what the package says in the log, from INFO on, also where the log as it is set up leaves that out."""
    logger = getLogger(_PACKAGE)
    level, shown, propagate = logger.level, logger.getEffectiveLevel(), logger.propagate
    keeper = _Keeper(shown)
    logger.addHandler(keeper)
    logger.setLevel(min(shown, INFO))
    logger.propagate = False  # the keeper passes on what the log would have shown
    try:
        yield keeper.notes
    finally:
        logger.removeHandler(keeper)
        logger.setLevel(level)
        logger.propagate = propagate


def repeat_notes(notes: Iterable[LogRecord], before: float) -> None:
    """Say again what was said before a time, in seconds as `time.time` has them, with the times of then."""
    for note in notes:
        if note.created < before:
            getLogger(note.name).handle(note)


class _Keeper(Handler):
    """Keeps records, and hands those on that are shown.

    Args:
        shown: level from which on they are.
    """

    def __init__(self, shown: int) -> None:
        super().__init__()
        self.notes: list[LogRecord] = []
        self._shown = shown

    def emit(self, record: LogRecord) -> None:
        self.notes.append(record)
        if record.levelno >= self._shown:
            getLogger().handle(record)
