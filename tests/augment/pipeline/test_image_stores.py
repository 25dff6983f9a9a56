"""Images in memory: they are not copied, and not cached."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pytest
import torch
from loaders import build_loader
from photos import draw_photo
from PIL import Image
from stores import FIXED

from augment.data.dataset import Split
from augment.data.images import MemoryImage
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.graph.device_placement import place
from augment.recipe.steps import parse_aug


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
    lasting: list[Any] = [Lasting(str(n), content) for n, content in enumerate(stored)]
    if kind is FleetingPixels:
        lasting = [MemoryImage(str(n), photo) for n, photo in enumerate(photos)]
    fleeting = [kind(str(n), content) for n, content in enumerate(stored)]
    placement = Placement("gpu" if device.type == "cuda" else "cpu", prefetch=3)
    options: dict[str, Any] = {"batch_size": 2, "seed": 3, "device": device, "raw": True, "placement": placement}
    one, other = (build_loader(FIXED, Split(tuple(some), tuple(range(8))), **options) for some in (fleeting, lasting))
    for batch, expected in zip([*one, *one, *one], [*other, *other, *other], strict=True):
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.targets, expected.targets)


def test_there_is_no_cache_for_images_in_larger_files(photos: tuple[Path, ...]) -> None:
    aug, cuda = parse_aug({"cache": 100}), torch.device("cuda:0")
    stored, decoded = (Lasting("a", b""),), (MemoryImage("a", draw_photo(8, 8, 0)),)
    assert place(aug, photos, cuda, threads=1).cache == 100
    tar = place(aug, stored, cuda, threads=1)
    assert tar.cache == 0
    assert tar.reason.startswith("cache: off")
    assert place(parse_aug({}), stored, cuda, threads=1).reason == ""
    raw = place(parse_aug({"cache": "gpu"}), decoded, cuda, threads=1)
    assert raw == Placement("gpu", "mixed", 0, aug.prefetch)
    assert raw.reason.startswith("decode and cache: not used")
