"""Names of classes that lie in a file beside larger files, as `augment.convert` writes them, and were not asked for."""

import logging

from augment.dataset import Dataset
from augment.errors import UserError
from augment.records.lists import CLASSES_FILE
from augment.records.shards import find_shards

logger = logging.getLogger(__name__)


def note_names_beside(source: object, dataset: Dataset) -> None:
    """Say in the log that classes which are called by their numbers have names in a file beside the data.

    Args:
        source: with the settings `classes` and `train`, a pattern of files, or one without them, of which nothing is
            said.
        dataset: of the source.
    """
    pattern = getattr(source, "train", None)
    if getattr(source, "classes", "") is not None or not isinstance(pattern, str) or not _numbered(dataset):
        return
    try:
        file = find_shards(pattern, "data.train")[0].parent / CLASSES_FILE
    except UserError:  # a folder, or code
        return
    if file.is_file() and tuple(file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]) != dataset.classes:
        logger.warning("%s may hold the names of the classes; data.classes=%s reads them", file, file)


def _numbered(dataset: Dataset) -> bool:
    """Whether classes or labels are called by their numbers, from 0 or 1."""
    if dataset.task == "regress":
        return False
    return any(dataset.classes == tuple(map(str, range(first, len(dataset.classes) + first))) for first in (0, 1))
