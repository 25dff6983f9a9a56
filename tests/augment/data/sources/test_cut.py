"""Val that is cut from train, in every source, and the folders that people have."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_of_sources import ENDINGS, Sample, jpeg, put
from PIL import Image
from runs import BARE

from augment.data.dataset import Dataset
from augment.data.sources import load_dataset, parse_data
from augment.support.errors import UserError
from trainer import train

pytestmark = pytest.mark.usefixtures("own_folder")

ALL = ("folder", *ENDINGS, "own")


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Ten JPEGs of each of two classes, of which the last has a copy of the first."""
    images = [jpeg(number) for number in range(19)]
    return [(image, number % 2, "") for number, image in enumerate([*images, images[1]])]


def cut(source: str, samples: list[Sample], **settings: object) -> Dataset:
    if source == "own":
        Path("my_cut_data.py").write_text(
            "from pathlib import Path\n"
            "def train():\n    return [(Path(f'{n}.jpg').read_bytes(), n % 2) for n in range(20)]\n"
        )
        for number, (image, _, _) in enumerate(samples):
            Path(f"{number}.jpg").write_bytes(image)
        given: dict[str, object] = {"train": "my_cut_data.train"}
    elif source == "numpy":
        np.save("x.npy", [np.asarray(Image.open(BytesIO(image))) for image, _, _ in samples])
        np.save("y.npy", [target for _, target, _ in samples])
        given = {"train": "x.npy", "train_targets": "y.npy"}
    else:
        given = dict(put(source, "train", samples))
    return load_dataset(parse_data({"source": source, **given, **settings}))


@pytest.mark.parametrize("source", ALL)
def test_a_share_of_each_class_is_validated_on_and_copies_are_on_one_side(
    source: str, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    found = cut(source, samples, val_fraction=0.3, split_seed=3)
    assert np.bincount(found.train.targets).tolist() in ([7, 7], [7, 6]), "one more in val if the copies are there"
    assert len(set(found.train.files) | set(found.val.files)) == len(found.train) + len(found.val) == 20
    pairs = [[image in split.files for image in found.copies] for split in (found.train, found.val)]
    assert sorted(pairs) == [[False, False], [True, True]]


def test_a_val_is_missed_before_anything_is_read(samples: list[Sample]) -> None:
    with pytest.raises(UserError, match=r"^data.val is missing\. .*data.val_fraction=0.2, which .*data.folds=5"):
        cut("numpy", samples)
    with pytest.raises(UserError, match=r"^data.val_fraction=0.2 contradicts data.folds=3"):
        parse_data({"source": "folder", "root": ".", "folds": 3, "fold": 0, "val_fraction": 0.2})


@pytest.mark.parametrize(
    ("source", "aside"), [("folder", {"root": "set/train"}), ("filelist", {"val": None}), ("webdataset", {"val": None})]
)
def test_a_val_that_a_cut_would_drop_is_rejected(source: str, aside: dict[str, Any], samples: list[Sample]) -> None:
    given = {**put(source, "train", samples), **put(source, "val", samples)}
    (key, value), *_ = aside.items()
    remedy = re.escape(f"data.{key}={'null' if value is None else value}")
    with pytest.raises(UserError, match=rf"^data\.val_fraction=0\.2 .*val.*{remedy}"):
        parse_data({"source": source, **given, "val_fraction": 0.2})
    aside = given | aside
    dataset = load_dataset(parse_data({"source": source, **aside, "val_fraction": 0.2}))
    assert len(dataset.train) + len(dataset.val) == 20


# --- as people have them ---


def test_a_table_of_ids_beside_one_folder_trains_with_one_command() -> None:
    Path("d/images").mkdir(parents=True)
    for number in range(10):
        Path(f"d/images/{number:03}.jpg").write_bytes(jpeg(number))
    Path("d/labels.csv").write_text("id,breed\n" + "".join(f"{n:03},{('pug', 'boxer')[n % 2]}\n" for n in range(10)))
    given = "data=filelist data.train=d/labels.csv data.root=d/images data.val_fraction=0.2"
    small = "fit.device=cpu fit.threads=1 fit.epochs=1 fit.batch_size=4 aug.size=16"
    assert train(*given.split(), *small.split(), *BARE).status == "finished"
