"""The COCO ids of the images and categories that a run was trained with, so that its predictions can repeat them."""

from collections.abc import Mapping
from typing import Any

from augment.data.dataset import Dataset
from augment.data.images import portable_names

# The file in a run's folder with the ids of the annotations that it was trained with, see `ids_of`.
IDS_FILE = "coco_ids.json"

# The ids of "images", by the ends of their paths, and of "categories", by their names.
Ids = Mapping[str, Mapping[str, Any]]


def ids_of(dataset: Dataset) -> Ids:
    """Return the ids of a dataset's classes, and of its validation images; none if no file of annotations has them."""
    if not dataset.class_ids:
        return {}
    names = portable_names(dataset.val.files)
    images = dict(zip(names, (getattr(of, "image_id", 0) for of in dataset.val.targets), strict=True))
    return {"categories": dataset.class_ids, "images": images}
