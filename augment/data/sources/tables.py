"""The sources of CSV files of points and of boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from augment.data.dataset import Dataset
from augment.data.formats.objects import Wanted, class_names, label, make_objects, missing, named_pairs
from augment.data.formats.tables import point_names, read_boxes, read_points
from augment.data.sources.registry import MAX_BAD, SKIP_BAD, ListedSource, source
from augment.data.targets.names import read_names
from augment.params import Param, Text, setting
from augment.support.files import expanded

_ROOT = Text(optional=True, doc="folder that paths are relative to; null: the folder of each file")


@dataclass(frozen=True, kw_only=True)
class Pairs(Param[tuple[tuple[str, str], ...]]):
    """A list of pairs of names."""

    def _convert(self, value: object) -> tuple[tuple[str, str], ...] | None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return None
        pairs = [tuple(pair) for pair in value if isinstance(pair, Sequence) and not isinstance(pair, str)]
        found = tuple((str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2)
        return found if len(found) == len(value) else None

    def _allowed(self) -> str:
        return "a list of pairs, such as [[left_eye,right_eye]]"


@source("points")
@dataclass(frozen=True, kw_only=True)
class PointTable(ListedSource):
    """CSV of a fixed number of points in each image: path,x_NAME,y_NAME,... in pixels; empty cells: not labeled."""

    task: ClassVar[str] = "keypoints"

    train: str = setting(
        Text(required=True, doc="file of train, .csv; v_NAME may say 0 not labeled, 1 hidden, 2 visible")
    )
    root: str | None = setting(_ROOT)
    flip_pairs: tuple[tuple[str, str], ...] | None = setting(
        Pairs(
            optional=True, doc="points that change places in a mirrored image; null: by left and right in their names"
        )
    )
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """Read the files; images that are missing are a problem, unless bad ones are left out."""
        files, root = {key: expanded(file) for key, file in self.given().items()}, self.root and expanded(self.root)
        names = point_names(*next(iter(files.items())))
        splits = [read_points(key, file, root or None, names) for key, file in files.items()]
        wanted = Wanted("keypoints", points=names, flip_pairs=named_pairs(self.flip_pairs, names))
        return make_objects(names, splits, wanted, problems=() if self.skip_bad else missing(self.given(), splits))


@source("boxes")
@dataclass(frozen=True, kw_only=True)
class BoxTable(ListedSource):
    """CSV of boxes, a line an object: path,left,top,right,bottom,class in pixels; only the path: no objects."""

    task: ClassVar[str] = "detect"

    train: str = setting(Text(required=True, doc="file of train, .csv"))
    root: str | None = setting(_ROOT)
    classes: str | None = setting(Text(optional=True, doc="file with one class name per line; null: those found"))
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """Read the files; images that are missing are a problem, unless bad ones are left out."""
        root = None if self.root is None else expanded(self.root)
        splits = [read_boxes(key, expanded(file), root) for key, file in self.given().items()]
        classes = read_names(self.classes) if self.classes else class_names(splits)
        label(splits, classes)
        return make_objects(classes, splits, Wanted(), problems=() if self.skip_bad else missing(self.given(), splits))
