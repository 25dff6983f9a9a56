"""Where images are decoded, how much is kept, and what is said about it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loaders import build_loader

import augment.pipeline.graph.build
import augment.pipeline.graph.device_placement
from augment.data.dataset import Split
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.graph.device_placement import place
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug, parse_aug
from augment.support.errors import UserError

CPU, CUDA = torch.device("cpu"), torch.device("cuda:1")
GIB = 2**30


def aug_of(**given: object) -> Aug:
    return parse_aug(given)


def test_where_images_are_decoded(photos: tuple[Path, ...]) -> None:
    assert place(aug_of(cache="gpu", prefetch=3), photos, CPU, threads=1) == Placement("cpu", prefetch=3)
    for decode in ("mixed", "cpu"):
        placement = place(aug_of(decode=decode, cache=70), photos, CUDA, threads=1)
        expected = Placement("gpu", decode, 0 if decode == "cpu" else 70, 4)
        assert replace(placement, hw_decoder_load=0.65) == replace(expected, load_auto=True)
        assert placement.gpu == 1
        assert placement.reason.startswith("cache: 70 MiB of GPU memory. All 6 decoded images") == (decode != "cpu")


@pytest.mark.parametrize(("pixels", "mib"), [(64 * 64, 1), (2**32, 10 * 1024 + 1)])
def test_size_of_the_cache(pixels: int, mib: int, photos: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what all images take, at most half of what is free."""
    monkeypatch.setattr(augment.pipeline.graph.device_placement, "_pixels", lambda files: pixels)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * GIB, 80 * GIB))
    assert place(aug_of(cache="gpu"), photos, CUDA, threads=1).cache == mib


MIXED = Placement("gpu")


def loader(placement: Placement, split: Split) -> Loader:
    plan = build_plan(aug_of(size=32), "train")
    made = build_loader(plan, split, batch_size=2, seed=0)
    made.placement = placement  # also one on a GPU, where there is none
    return made


def test_a_run_that_continues_decodes_as_it_did(image_files: Split) -> None:
    before = loader(Placement("cpu", hw_decoder_load=0.3, load_auto=True), image_files)
    next(iter(before))
    after = loader(Placement("cpu", load_auto=True), image_files)
    after.load_state_dict(before.state_dict())
    assert after.placement == before.placement


@pytest.mark.parametrize(
    ("pixels", "threads", "share"), [(224 * 224, 16, 0.24), (224 * 224, 4, 0.56), (500 * 375, 16, 0.54)]
)
def test_the_share_of_the_hardware_decoder(
    pixels: int, threads: int, share: float, photos: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(augment.pipeline.graph.device_placement, "_pixels", lambda files: pixels)
    placement = place(aug_of(), photos, CUDA, threads=threads)
    assert (placement.hw_decoder_load, placement.load_auto) == (share, True)
    assert not place(aug_of(hw_decoder_load=0.5), photos, CUDA, threads=threads).load_auto


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (replace(MIXED, decode="cpu"), "aug.decode"),
        (replace(MIXED, cache=100), "aug.cache"),
        (replace(MIXED, hw_decoder_load=0.5), "aug.hw_decoder_load"),
        (replace(MIXED, load_auto=True), "aug.hw_decoder_load"),
        (Placement("cpu"), "fit.device"),
    ],
)
def test_a_state_of_other_pixels_is_rejected(other: Placement, key: str, image_files: Split) -> None:
    with pytest.raises(UserError, match=key):
        loader(other, image_files).check_state(loader(MIXED, image_files).state_dict())


def test_a_state_of_the_same_pixels_is_taken(image_files: Split) -> None:
    chosen = replace(MIXED, load_auto=True)
    for one, other in ((MIXED, replace(MIXED, prefetch=9)), (chosen, replace(chosen, hw_decoder_load=0.3))):
        loader(other, image_files).check_state(loader(one, image_files).state_dict())
