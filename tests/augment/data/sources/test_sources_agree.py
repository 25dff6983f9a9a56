"""The same photos through every source: each image once in each epoch, over any number of shards, and resumed."""

import csv
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from files_of_sources import NAMES, samples_of, write
from loaders import build_loader
from nvidia.dali import fn, pipeline_def
from photos import draw_photo
from PIL import Image
from stores import FIXED, write_shards

from augment.data.dataset import Dataset, Split
from augment.data.images import name_of
from augment.data.sources import parse_data
from augment.pipeline.graph.sample_order import RankShard
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug

PHOTOS = 23  # shards of a half and a third of them are of two sizes
EPOCHS = 3
DRAWN = build_plan(
    parse_aug({"size": 16, "train": {"random_crop": {}, "flip": {"p": 0.5}, "brightness": {"p": 0.5}}}), "train"
)

Sample = tuple[int, bytes]
Settings = dict[str, Any]


def folder(place: Path, photos: Split) -> Settings:
    for file, target in zip(photos.files, photos.targets, strict=True):
        for split in ("train", "val"):
            (place / split / NAMES[target]).mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file), place / split / NAMES[target])
    return {"root": str(place)}


def filelist(place: Path, photos: Split) -> Settings:
    with (place / "list.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label"])
        writer.writerows(zip(map(str, photos.files), photos.targets, strict=True))
    return _both(place / "list.csv")


def webdataset(place: Path, photos: Split) -> Settings:
    return _both(write_shards(place, [Path(str(file)) for file in photos.files], photos.targets, 3))


def arrays(place: Path, photos: Split) -> Settings:
    """As the decoder of all other sources makes them."""

    @pipeline_def(batch_size=PHOTOS, num_threads=1, device_id=None)
    def decode() -> object:
        encoded, _ = fn.readers.file(files=[str(file) for file in photos.files])
        return fn.decoders.image(encoded, device="cpu")

    pipeline = decode()
    pipeline.build()
    np.save(place / "x.npy", pipeline.run()[0].as_array())
    np.save(place / "y.npy", np.array(photos.targets))
    return {"train_targets": str(place / "y.npy"), "val_targets": str(place / "y.npy"), **_both(place / "x.npy")}


def records(source: str) -> Callable[[Path, Split], Settings]:
    def files(place: Path, photos: Split) -> Settings:
        samples = samples_of(photos)
        for shard in range(3):
            written = write(source, place, f"train-{shard}", samples[shard::3])
        name = written.parent if source == "lmdb" else written
        return _both(str(name).replace("train-2", "train-*"))

    return files


def _both(pattern: object) -> Settings:
    return {"train": str(pattern), "val": str(pattern)}


STORES: dict[str, Callable[[Path, Split], Settings]] = {
    "folder": folder,
    "filelist": filelist,
    "webdataset": webdataset,
    "numpy": arrays,
} | {source: records(source) for source in ("tfrecord", "recordio", "lmdb", "parquet")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """JPEGs of one size, which arrays need, and of three classes in mixed order."""
    place = tmp_path_factory.mktemp("photos")
    files = tuple(place / f"{number:02}.jpg" for number in range(PHOTOS))
    for number, file in enumerate(files):
        Image.fromarray(draw_photo(48, 40, number)).save(file, quality=90)
    return Split(files, tuple(number * 7 % 3 for number in range(PHOTOS)))


@pytest.fixture(scope="module", params=STORES)
def loaded(request: pytest.FixtureRequest, photos: Split, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The dataset of a source, once as it was prepared and then as the next run finds it."""
    place = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "set").mkdir()
        source = parse_data({"source": request.param, **STORES[request.param](place / "set", photos)})
        dataset = source.load()
        assert source.load() == dataset
    return dataset


@pytest.fixture(scope="module")
def expected(photos: Split) -> Counter[Sample]:
    """What files of their own give, in the order of the list."""
    (batch,) = make(photos, FIXED, batch_size=PHOTOS)
    found = Counter(samples(batch.images, batch.targets))
    assert len(found) == PHOTOS
    return found


def make(split: Split, plan: Plan, rank: int = 0, world_size: int = 1, batch_size: int = 4) -> Loader:
    return build_loader(plan, split, batch_size=batch_size, seed=3, raw=True, shard=RankShard(rank, world_size))


def samples(images: torch.Tensor, targets: torch.Tensor) -> list[Sample]:
    return [(target, pixels.numpy().tobytes()) for target, pixels in zip(targets.tolist(), images, strict=True)]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_image_comes_once_an_epoch(shards: int, loaded: Dataset, expected: Counter[Sample]) -> None:
    loaders = [make(loaded.train, FIXED, rank, shards) for rank in range(shards)]
    orders = set()
    for _ in range(EPOCHS):
        batches = [list(loader) for loader in loaders]
        assert all(len(batch) <= 4 for batch in chain.from_iterable(batches))
        assert (
            Counter(s for some in batches for batch in some for s in samples(batch.images, batch.targets)) == expected
        )
        indices = [tuple(torch.cat([batch.indices for batch in some]).tolist()) for some in batches]
        assert sorted(chain.from_iterable(indices)) == list(range(PHOTOS))
        orders.add(tuple(indices))
    assert len(orders) == EPOCHS  # shuffled anew


def test_images_have_names_of_their_own_and_can_be_pickled(loaded: Dataset) -> None:
    assert len(set(map(name_of, loaded.train.files))) == len(set(loaded.train.files)) == PHOTOS
    assert pickle.loads(pickle.dumps(loaded.train)) == loaded.train


@pytest.mark.parametrize(("rank", "shards"), [(0, 1), (1, 2), (2, 3)])
def test_an_epoch_resumes_in_its_middle(rank: int, shards: int, loaded: Dataset) -> None:
    whole = make(loaded.train, DRAWN, rank, shards)
    list(whole)
    second = list(whole)
    third = list(whole)

    stopped = make(loaded.train, DRAWN, rank, shards)
    list(stopped)
    batches = iter(stopped)
    first = next(batches)
    state = stopped.state_dict()
    stopped.close()
    resumed = make(loaded.train, DRAWN, rank, shards)
    resumed.load_state_dict(state)
    rest, after = list(resumed), list(resumed)
    assert len(rest) == len(second) - 1 > 0
    for got, wanted in zip([first, *rest, *after], [*second, *third], strict=True):
        assert torch.equal(got.images, wanted.images)
        assert torch.equal(got.targets, wanted.targets)
        assert torch.equal(got.indices, wanted.indices)
