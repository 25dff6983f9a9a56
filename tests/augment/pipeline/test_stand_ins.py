"""data.max_bad: another image of the class replaces one that becomes unreadable during a run."""

import dataclasses
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import pytest
import torch
from files_of_sources import drawn, load, put
from loaders import build_loader
from PIL import Image
from stores import FIXED, epochs
from torch import Tensor

from augment.data.dataset import ImageRef, Split
from augment.pipeline.batch import Batch
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError

RANDOM = build_plan(parse_aug({"size": 16, "train": {"random_resized_crop": {}, "flip": {}, "rotate": {}}}), "train")

pytestmark = pytest.mark.usefixtures("own_folder")


class Stored:
    """An encoded image in memory whose bytes can be damaged."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content

    def read(self) -> bytes:
        return self.content


def replaceable(stored: bool, max_bad: int, plan: Plan = FIXED) -> tuple[Loader, Split]:
    """A loader of 24 images of 3 classes: files of their own, or in larger ones."""
    put("folder", "train", drawn(24))
    put("folder", "val", drawn(3))
    split = load("folder", {"root": str(Path("set").resolve())}).train
    if stored:
        images = tuple(Stored(f"{file}", Path(str(file)).read_bytes()) for file in split.files)
        split = Split(images, split.targets)
    split = dataclasses.replace(split, max_bad=max_bad)
    return build_loader(plan, split, batch_size=4, seed=0, classes="abc"), split


def spoil(image: ImageRef) -> None:
    """Damage the pixels of an image, whose header stays good."""
    content = damaged_png()
    if isinstance(image, Path):
        image.unlink()
        image.write_bytes(content)
    else:
        assert isinstance(image, Stored)
        image.content = content


def damaged_png() -> bytes:
    stream = BytesIO()
    Image.effect_noise((40, 40), 80).save(stream, "PNG")
    content = stream.getvalue()
    start = content.index(b"IDAT")
    return content[: start + 60] + bytes(40) + content[start + 100 :]


def seen(batches: Iterable[Batch]) -> list[tuple[int, Tensor]]:
    return [(int(index), image) for batch in batches for index, image in zip(batch.indices, batch.images, strict=True)]


@pytest.mark.parametrize(("stored", "plan"), [(False, RANDOM), (True, FIXED)], ids=["files, random", "stored, fixed"])
def test_another_image_of_the_class_stands_in(stored: bool, plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    loader, _ = replaceable(stored, 2, plan)
    whole = [seen(loader) for _ in range(4)]
    loader, split = replaceable(stored, 2, plan)
    found = [seen(loader)]
    spoil(split.files[5])
    found += [seen(loader) for _ in range(3)]
    replaced = [(a, b) for epoch, other in zip(whole, found, strict=True) for a, b in zip(epoch, other, strict=True)]
    others = [(a, b) for a, b in replaced if a[0] != b[0]]
    assert all(a == b and torch.equal(image, other) for (a, image), (b, other) in replaced if a == b)
    assert {a for (a, _), _ in others} == {5}
    (stand_in,) = {b for _, (b, _) in others}
    assert split.targets[stand_in] == split.targets[5]
    assert len(others) >= 2
    assert caplog.text.count("replaces it (1 of data.max_bad=2)") == 1


def test_a_resumed_loader_keeps_those_that_stand_in() -> None:
    loader, split = replaceable(False, 2, RANDOM)
    list(loader)
    spoil(split.files[5])
    list(loader)
    list(loader)
    passing = iter(loader)
    next(passing)
    state = loader.state_dict()
    rest = seen(passing)
    again, _ = build_loader(RANDOM, split, batch_size=4, seed=0, classes="abc"), split
    again.load_state_dict(state)
    resumed = seen(again)
    assert [index for index, _ in resumed] == [index for index, _ in rest]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(resumed, rest, strict=True))


def test_an_image_that_stands_in_may_turn_bad_itself() -> None:
    """Which images stand in does not depend on the order in which the bad ones were found."""
    loader, split = replaceable(False, 9)
    list(loader)
    spoil(split.files[5])
    epochs(loader, 3)
    first = loader.state_dict()["stand_ins"][5]
    spoil(split.files[first])
    epochs(loader, 3)
    found = loader.state_dict()["stand_ins"]
    assert set(found) == {5, first}
    assert not {5, first} & set(found.values())
    other = build_loader(FIXED, split, batch_size=4, seed=0)
    list(other)
    assert other.state_dict()["stand_ins"] == found


def test_more_bad_images_than_allowed_end_the_run() -> None:
    loader, split = replaceable(False, 1)
    list(loader)
    for index in (2, 5):
        spoil(split.files[index])
    with pytest.raises(
        UserError, match=r"data\.max_bad=1: 2 images became unreadable during training, last .+ is broken: "
    ):
        epochs(loader, 4)


def test_stored_images_that_cannot_be_decoded_are_named() -> None:
    loader, split = replaceable(True, 0)
    spoil(split.files[5])
    with pytest.raises(UserError, match=r"data: an image became unreadable: .+ is broken: "):
        list(loader)
