"""The feed of images: what is read in the background, and what happens if it cannot be."""

import gc
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from augment.data.images import MemoryImage
from augment.pipeline.graph.sample_order import ImageFeed, Reading
from augment.support.errors import UserError


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 4), (8, 8, 3)])
def test_pixels_of_another_form_are_rejected(shape: tuple[int, ...]) -> None:
    image: Any = MemoryImage("mine", np.zeros(shape, np.float32 if shape == (8, 8, 3) else np.uint8))
    feed = ImageFeed(Reading([image], 1, seed=0))
    with pytest.raises(UserError, match=r"^data: mine has \(8, 8.*\) \w+ pixels\. Allowed: \(height, width, 3\) uint8"):
        feed(SimpleNamespace(iteration=0))


class Begun:
    """An image that is read in the background, or cannot be begun."""

    name = "begun"

    def __init__(self, found: Future[dict[int, bytes]] | BrokenExecutor) -> None:
        self.found = found

    def read(self) -> bytes:
        return b""

    @staticmethod
    def begin(image_files: Mapping[int, "Begun"]) -> list[Future[dict[int, bytes]]]:
        return [image._begin() for image in image_files.values()]

    def _begin(self) -> Future[dict[int, bytes]]:
        if isinstance(self.found, BrokenExecutor):
            raise self.found
        return self.found


def test_what_was_begun_for_nobody_is_not_read() -> None:
    futures: list[Future[dict[int, bytes]]] = [Future() for _ in range(9)]
    feed = ImageFeed(Reading([Begun(future) for future in futures], 1, seed=0))
    futures[0].set_result({0: b"ab"})
    feed(SimpleNamespace(iteration=0))
    assert not any(future.cancelled() for future in futures)
    del feed
    gc.collect()
    assert [future.cancelled() for future in futures] == [False, True, True, *[False] * 6]


@pytest.mark.parametrize("when", ["before", "after"])
def test_readers_that_die_are_reported(when: str) -> None:
    failed: Future[dict[int, bytes]] = Future()
    failed.set_exception(BrokenExecutor())
    feed = ImageFeed(Reading([Begun(BrokenExecutor() if when == "before" else failed)], 1, seed=0))
    with pytest.raises(UserError, match=r"^data\.workers: a process that reads images was killed"):
        feed(SimpleNamespace(iteration=0))
