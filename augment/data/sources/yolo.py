"""The source of YOLO's data sets."""

from dataclasses import dataclass

from augment.data.dataset import Dataset
from augment.data.formats.objects import Wanted, make_objects
from augment.data.formats.yolo import images_of, read_yolo
from augment.data.sources.coco import INSTANCES, TASK
from augment.data.sources.registry import MAX_BAD, SKIP_BAD, Source, source
from augment.params import Text, setting
from augment.support.files import expanded


@source("yolo")
@dataclass(frozen=True, kw_only=True)
class Yolo(Source):
    """YOLO's data.yaml with .txt labels: boxes, with them masks of instances if asked; or masks of classes."""

    root: str = setting(Text(aliases=("path",), required=True, doc="data.yaml, or the folder that it is in"))
    task: str = setting(TASK)
    instances: bool = setting(INSTANCES)
    skip_bad: bool = setting(SKIP_BAD)
    max_bad: int = setting(MAX_BAD)

    def load(self) -> Dataset:
        """Read the labels of all images."""
        root = expanded(self.root)
        yolo = read_yolo(root / "data.yaml" if root.is_dir() else root)
        has_val = not self.cuts_val and bool(yolo.content.get("val") or yolo.content.get("valid"))
        names = ["val"] if self.only_val else ["train", "val"] if has_val else ["train"]
        splits, notices = zip(*(images_of(yolo, name) for name in names), strict=True)
        return make_objects(tuple(yolo.names.values()), splits, Wanted(self.task, self.instances)).noting(*notices)
