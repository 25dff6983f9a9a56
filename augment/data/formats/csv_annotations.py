"""Read CSV files of keypoints, with one image per line, and of boxes, with one object per line."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from augment.data.formats.annotations import AnnotatedImage, AnnotatedObject
from augment.data.formats.text_files import read_table
from augment.support.errors import UserError
from augment.support.formatting import list_some

_BOX = ("left", "top", "right", "bottom", "class")


def _read(key: str, file: Path, columns: Sequence[str] = ()) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """Return the header and the rows of a CSV file. A row is its position, for messages, and a dict of cells by column.

    Raises:
        UserError: the file cannot be read, or a column is missing or repeated.
    """
    allowed = f"a CSV file with path, {', '.join(columns) or 'x_NAME, y_NAME'}"
    header, rows = read_table(key, file, allowed, columns=("path", *(columns or ("x_NAME", "y_NAME"))))
    counts = Counter(header)
    if odd := [name for name in ("path", *columns, *header) if counts[name] != 1]:
        raise UserError(
            f"{key}={file}: the header {list_some(header)} must have one column '{odd[0]}'. Allowed: {allowed}."
        )
    return header, [(f"line {number} of {file}", dict(zip(header, cells, strict=False))) for number, cells in rows]


def point_names(key: str, file: Path) -> tuple[str, ...]:
    """Return the names of the keypoints in the columns x_NAME, y_NAME and optionally v_NAME.

    Raises:
        UserError: a column for keypoints is missing, or a column is unknown.
    """
    header, _ = _read(key, file)
    names = tuple(name[2:] for name in header if name.startswith("x_"))
    expected = {f"{axis}_{name}" for name in names for axis in "xyv"} | {"path"}
    known = set(header)
    odd = [name for name in header if name not in expected] + [n for n in names if f"y_{n}" not in known]
    if odd:
        what = f"the column '{odd[0]}' is {'unknown' if odd[0] in known else 'missing'}"
        raise UserError(f"{key}={file}: {what}. Use path, then x_NAME, y_NAME and optionally v_NAME for each keypoint.")
    return names


def read_points(key: str, file: Path, root: Path | None, names: Sequence[str]) -> list[AnnotatedImage]:
    """Return the images of a file of keypoints. Each has one object with these keypoints.

    Raises:
        UserError: the file is malformed, or has other keypoints.
    """
    if set(found := point_names(key, file)) != set(names):
        raise UserError(f"{key}={file} has the keypoints {list_some(found)}. Allowed: {list_some(names)}.")
    images = []
    for where, cells in _read(key, file)[1]:
        image = AnnotatedImage((file.parent if root is None else root) / cells["path"], where)
        with image.object_at(where):
            points = np.array([_point(cells, name) for name in names])
            image.objects.append(AnnotatedObject(where, (0, 0, 1, 1), 1, points=points))
        images.append(image)
    return images


def _point(cells: dict[str, str], name: str) -> tuple[float, float, float]:
    x, y, visible = (cells.get(f"{axis}_{name}", "") for axis in "xyv")
    if not (x or y) or visible in ("0", "0.0"):
        return 0.0, 0.0, 0.0
    try:
        found = float(x), float(y), float(visible or 2)
    except ValueError:
        found = (np.nan,) * 3
    if not np.isfinite(found).all() or found[2] not in (0, 1, 2):
        raise ValueError(f"{name} is {x},{y},{visible} instead of x, y and a visibility of 0, 1 or 2, or empty cells")
    return found


def read_boxes(key: str, file: Path, root: Path | None) -> list[AnnotatedImage]:
    """Return the images of a file of boxes. The labels of the objects are 0, because only their names are known.

    Raises:
        UserError: the file is malformed.
    """
    images: dict[Path, AnnotatedImage] = {}
    for where, cells in _read(key, file, _BOX)[1]:
        path = (file.parent if root is None else root) / cells["path"]
        image = images.setdefault(path, AnnotatedImage(path, where, image_id=len(images) + 1))
        words = [cells[name] for name in _BOX]
        if not any(words):
            continue  # an image without objects
        with image.object_at(where):
            if not words[4]:
                raise ValueError("no class")
            image.objects.append(AnnotatedObject(where, [float(word) for word in words[:4]], 0, name=words[4]))
    return list(images.values())
