"""Images from larger files through real DALI: the epochs of paths, exactly, whatever they lie in."""

from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pytest
import torch
from decoded import MemoryImage, for_device
from loaders import build_loader
from photos import draw_photo
from PIL import Image
from stores import FIXED, write_arrays, write_shards

from augment.data.dataset import Split
from augment.data.sources import parse_data
from augment.pipeline.graph import Placement
from augment.pipeline.loader import Loader
from augment.pipeline.placement import place
from augment.pipeline.reading import Shard
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug

CPU = torch.device("cpu")
SOURCES = ("folder", "webdataset", "numpy")
Sample = tuple[int, bytes]


@pytest.fixture(scope="module")
def stores(image_files: Split, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    """The same seven images, 40 x 40 px, as files, in tar shards and in an array."""
    folder = tmp_path_factory.mktemp("stores")
    originals = [Path(str(file)) for file in image_files.files]
    x, y = write_arrays(folder, originals, image_files.targets)
    files = []
    for index, pixels in enumerate(np.load(x)):
        files.append(folder / f"{index}.png")
        Image.fromarray(pixels).save(files[-1])
    shards = write_shards(folder, files, image_files.targets, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tar = parse_data({"source": "webdataset", "train": shards, "val": shards}).load().train
        arrays = {"train": x, "train_targets": y, "val": x, "val_targets": y}
        raw = parse_data({"source": "numpy", **arrays}).load().train
    return {"folder": Split(tuple(files), image_files.targets), "webdataset": tar, "numpy": raw}


def make(split: Split, *, plan: Plan = FIXED, device: torch.device = CPU, **options: Any) -> Loader:
    return build_loader(plan, split, batch_size=2, seed=3, device=device, raw=True, **options)


def samples(loader: Loader, split: Split) -> list[Sample]:
    """Return target and pixels of each sample of a pass, and check that the target is that of the index."""
    found = []
    for batch in filter(attrgetter("share"), loader):
        assert batch.targets.tolist() == [split.targets[i] for i in batch.indices.tolist()]
        found += [(t, p.cpu().numpy().tobytes()) for t, p in zip(batch.targets.tolist(), batch.images, strict=True)]
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_same_samples_once_an_epoch_whatever_they_lie_in(
    stores: dict[str, Split], world_size: int, device: torch.device
) -> None:
    # One rank reads what is stored on the GPU too.
    splits = {
        name: split if world_size == 1 else Split(for_device(split.files, device), split.targets)
        for name, split in stores.items()
    }
    expected = Counter(samples(make(splits["folder"], device=device), splits["folder"]))
    assert len(expected) == 7
    for name in SOURCES:
        ranks = [make(splits[name], shard=Shard(r, world_size), device=device) for r in range(world_size)]
        orders = []
        for _ in range(3):
            passes = [samples(loader, splits[name]) for loader in ranks]
            assert [len(one) for one in passes] == [loader.samples for loader in ranks]
            orders.append([sample for one in passes for sample in one])
            assert Counter(orders[-1]) == expected, name
        assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("name", ["webdataset", "numpy"])
@pytest.mark.parametrize("shard", [Shard(), Shard(1, 2)])
def test_a_pass_is_resumed_exactly(name: str, shard: Shard, stores: dict[str, Split], device: torch.device) -> None:
    steps = {"random_resized_crop": {}, "flip": {"p": 0.5}, "hue": {"p": 0.5}}
    plan = build_plan(parse_aug({"size": 16, "train": steps}), "train")

    def batches(loader: Loader) -> list[tuple[list[int], bytes]]:
        return [(batch.indices.tolist(), batch.images.cpu().numpy().tobytes()) for batch in loader]

    straight = make(stores[name], plan=plan, shard=shard, device=device)
    expected = [batches(straight) for _ in range(3)]
    loader = make(stores[name], plan=plan, shard=shard, device=device)
    assert batches(loader) == expected[0]
    for number, batch in enumerate(loader, 1):
        assert batch.indices.tolist() == expected[1][number - 1][0]
        state = loader.state_dict()
        resumed = make(stores[name], plan=plan, shard=shard, device=device)
        resumed.load_state_dict(state)
        rest = expected[1][number:]
        if rest:
            assert batches(resumed) == rest
        assert batches(resumed) == expected[2]


def test_there_is_no_cache_for_images_in_larger_files(stores: dict[str, Split]) -> None:
    aug = parse_aug({"cache": 100})
    cuda = torch.device("cuda:0")
    assert place(aug, stores["folder"].files, cuda, threads=1).cache == 100
    tar = place(aug, stores["webdataset"].files, cuda, threads=1)
    assert (tar.cache, tar.reason) == (
        0,
        "cache: off, for it knows images by paths in UTF-8, and these have none",
    )
    assert place(parse_aug({}), stores["webdataset"].files, cuda, threads=1).reason == ""
    raw = place(parse_aug({"cache": "gpu", "decode": "auto"}), stores["numpy"].files, cuda, threads=1)
    assert raw == Placement("gpu", "mixed", 0, aug.prefetch)
    assert raw.reason.startswith("decode and cache: nothing to do")


# --- without copies ---


@dataclass(frozen=True)
class Lasting:
    """An encoded image in memory."""

    name: str
    content: bytes

    def read(self) -> bytes | memoryview:
        return self.content


class Fleeting(Lasting):
    """Its memory is overwritten as soon as nobody refers to it."""

    def read(self) -> memoryview:
        return lend(self.content)


class FleetingPixels(Fleeting):
    def read_pixels(self) -> Any:
        return np.frombuffer(lend(self.content), np.uint8).reshape(400, 500, 3)


def encoded(photo: Any) -> bytes:
    stream = BytesIO()
    Image.fromarray(photo).save(stream, "JPEG")
    return stream.getvalue()


def lend(content: bytes) -> memoryview:
    memory = bytearray(content)
    lent = np.frombuffer(memory, np.uint8)
    finalize(lent, overwrite, np.frombuffer(memory, np.uint8))
    return memoryview(lent)


def overwrite(memory: Any) -> None:
    memory[:] = 0


@pytest.mark.parametrize("kind", [Fleeting, FleetingPixels])
def test_memory_is_kept_for_as_long_as_dali_needs_it(kind: type[Fleeting], device: torch.device) -> None:
    photos = [draw_photo(500, 400, number) for number in range(8)]
    stored = [photo.tobytes() if kind is FleetingPixels else encoded(photo) for photo in photos]
    images: dict[bool, Any] = {True: [kind(str(n), content) for n, content in enumerate(stored)]}
    images[False] = (
        [MemoryImage(str(n), photo) for n, photo in enumerate(photos)]
        if kind is FleetingPixels
        else list(map(Lasting, map(str, range(8)), stored))
    )
    placement = Placement("gpu" if device.type == "cuda" else "cpu", prefetch=3)
    splits = {fleeting: Split(tuple(some), tuple(range(8))) for fleeting, some in images.items()}
    loaders = {fleeting: make(split, device=device, placement=placement) for fleeting, split in splits.items()}
    for _ in range(3):
        assert samples(loaders[True], splits[True]) == samples(loaders[False], splits[False])
