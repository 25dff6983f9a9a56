"""The COCO ids of a run's images and categories, so that its predictions use the same ids."""

from collections.abc import Mapping
from typing import Any

from augment.data.dataset import Dataset
from augment.data.images import portable_names

IDS_FILE = "coco_ids.json"  # in a run's folder

# The ids of "images" by path and of "categories" by name.
Ids = Mapping[str, Mapping[str, Any]]


def ids_of(dataset: Dataset) -> Ids:
    """Return the ids of a dataset's classes and validation images, or an empty mapping without COCO annotations."""
    if not dataset.class_ids:
        return {}
    names = portable_names(dataset.val.files)
    images = dict(zip(names, (getattr(target, "image_id", 0) for target in dataset.val.targets), strict=True))
    return {"categories": dataset.class_ids, "images": images}
