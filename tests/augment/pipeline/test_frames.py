"""Frames: output pixels against ramps, whose levels say where in the stored image a pixel lies."""

from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu
from loaders import build_loader
from numpy.typing import NDArray
from passes import SEED, saved
from PIL import Image

from augment import Transform, UserError, load_recipe
from augment.data.dataset import ImageRef, Split
from augment.data.images import MemoryImage
from augment.params import Number
from augment.pipeline.batch import Batch
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.loader import Loader
from augment.recipe.op import crop
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug

Pixels = NDArray[Any]
CPU = torch.device("cpu")
SIZE, BLUE = 40, 128
SIDES = ((90, 60), (60, 90), (64, 64), (35, 50), (70, 33), (120, 45), (45, 110), (43, 41))  # width and height
CROPS: dict[str, dict[str, Any]] = {
    "whole": {"resize": {}},
    "short": {"resize": {"side": "short"}},
    "long": {"resize": {"side": "long"}},
    "center": {"center_crop": {"scale": 0.7}},
    "letterbox": {"letterbox": {}},
    "window": {"random_resized_crop": {"area_range": [0.3, 1]}},
    "square": {"random_crop": {"scale": 0.8, "padding": 0.2, "border": "constant"}},
    "padded": {"random_crop": {"padding": 0.3, "border": "constant"}},
}
# What is not shown is black, also in blue, which is the same all over a ramp.
BLACK = {"p": 0.6, "border": "constant"}
GEOMETRY: dict[str, Any] = {
    "flip": {"p": 0.5},
    "rotate": {"angle_range": [-30, 30], **BLACK},
    "rot90": {"p": 0.5},
    "affine": BLACK,
    "invert": {"p": 0},
    "down": {"op": "flip", "direction": "vertical", "p": 0.5},
    "perspective": BLACK,
    "warp": BLACK,
}
PIXELS = {"hue": {"p": 0.5}, "gaussian_noise": {"p": 0.5}, "rotate": {"p": 0.5}}


def ramp(width: int, height: int) -> NDArray[np.uint8]:
    """Return an image whose red grows to the right and whose green grows downwards, by `per_pixel` levels."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    step = per_pixel(width, height)
    return np.stack([20 + step * x, 20 + step * y, 0 * x + BLUE], axis=-1).astype(np.uint8)


def per_pixel(width: int, height: int) -> int:
    return int(230 / max(width, height))


def encoded(pixels: Pixels, orientation: int, form: str = "PNG") -> bytes:
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, form, exif=exif)
    return file.getvalue()


RAMPS = [ramp(*sides) for sides in SIDES]
ENCODED = [encoded(pixels, number % 8 + 1) for number, pixels in enumerate(RAMPS)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Ramps of all sizes, each turned by another EXIF orientation."""
    folder = tmp_path_factory.mktemp("ramps")
    for number, content in enumerate(ENCODED):
        (folder / f"{number}.png").write_bytes(content)
    return tuple(sorted(folder.iterdir()))


STORED = tuple(MemoryImage(str(number), pixels) for number, pixels in enumerate(RAMPS))


def loader_of(aug: dict[str, Any], files: tuple[ImageRef, ...], split: Any = "train", **options: Any) -> Loader:
    plan = build_plan(parse_aug({"size": SIZE, **aug}), split)
    given: dict[str, Any] = {"batch_size": 5, "seed": SEED, "device": CPU, "raw": True, "frames": True} | options
    return build_loader(plan, Split(files, (0,) * len(files)), **given)


def check(images: torch.Tensor, frames: torch.Tensor, indices: torch.Tensor) -> int:
    """Check that pixels show the ramp at the inverse of their frames; return how many could be checked."""
    assert frames.dtype == torch.float64
    assert frames.device.type == "cpu"
    checked, errors = 0, []
    rows, columns = images.shape[2:]
    x, y = np.meshgrid(np.arange(columns), np.arange(rows))
    at = np.stack([x, y, np.ones_like(x)], axis=-1).astype(float)
    for image, frame, index in zip(images.cpu().numpy(), frames.numpy(), indices.tolist(), strict=True):
        width, height = SIDES[index]
        source = at @ np.linalg.inv(frame).T
        source /= source[..., 2:]
        # The filter of the resize reaches beyond the edges of the image, and what is near black is mixed with it.
        margin = 2 + 2 * max(width / columns, height / rows, min(width, height) / min(rows, columns))
        inside = (source[..., :2] > margin).all(-1) & (source[..., :2] < np.array([width, height]) - 1 - margin).all(-1)
        black = np.pad(image[2] != BLUE, 2)
        inside &= ~np.any([black[i : i + rows, j : j + columns] for i in range(5) for j in range(5)], axis=0)
        for channel in (0, 1):
            expected = 20 + per_pixel(width, height) * source[..., channel]
            errors.append((image[channel] - expected)[inside])
        checked += int(inside.sum())
    off = np.concatenate(errors)
    # Of roundings of up to half a level each, in the resize and in two warps.
    assert np.abs(off).max() < 2
    assert abs(off.mean()) < 0.2
    return checked


def check_pass(loader: Loader) -> None:
    checked = 0
    for batch in loader:
        assert len(batch.view_frames) == len(batch.views)
        assert torch.equal(batch.frames, batch.view_frames[0])
        for view, frames in zip(batch.views, batch.view_frames, strict=True):
            checked += check(view, frames, batch.indices)
    assert checked > 20 * SIZE


@pytest.mark.parametrize(
    ("size", "stored", "steps"), [(SIZE, "encoded", GEOMETRY), ([36, 52], "raw", GEOMETRY)], ids=["square", "wide, raw"]
)
@pytest.mark.parametrize("name", CROPS)
def test_pixels_are_where_their_frames_say(
    size: Any, name: str, stored: str, steps: dict[str, Any], files: tuple[Path, ...], device: torch.device
) -> None:
    images = files if stored == "encoded" else STORED
    for split in ("train", "val") if size == SIZE else ("train",):
        check_pass(loader_of({"size": size, split: CROPS[name] | steps}, images, split, device=device))


@pytest.mark.parametrize(
    "aug",
    [
        {"train": {**CROPS["window"], "some_of": {"steps": GEOMETRY, "count_range": [0, 3], "order": "random"}}},
        {"train": {**CROPS["window"], **GEOMETRY}, "views": {"count": 3}},
        {"train": {**CROPS["window"], **GEOMETRY}, "views": {"count": 2, "crop": "same"}, "fuse": False},
        {
            "train": {**CROPS["window"], "flip": {"p": 0.5}},
            "views": {
                "one": {},
                "two": {"share": ["random_resized_crop"], "steps": {"rotate": BLACK}},
                "small": {"size": [24, 30], "count": 2, "steps": {"random_resized_crop": {"area_range": [0.3, 0.6]}}},
            },
        },
    ],
    ids=["policy", "views", "views of one crop", "named views"],
)
def test_frames_of_policies_and_views(aug: dict[str, Any], files: tuple[Path, ...], device: torch.device) -> None:
    check_pass(loader_of(aug, files, device=device))


@needs_gpu
def test_frames_with_the_decoder_cache(files: tuple[Path, ...]) -> None:
    placement, cuda = Placement("gpu", "mixed", 64, hw_decoder_load=0.0), torch.device("cuda")
    with_frames, without = (
        loader_of({"train": CROPS["window"]}, files, placement=placement, device=cuda, frames=frames)
        for frames in (True, False)
    )
    for _ in range(2):
        check_pass(with_frames)
    with_frames.start_at(0)
    assert all(torch.equal(one.images, other.images) for one, other in zip(with_frames, without, strict=True))


@pytest.mark.parametrize("stored", ["encoded", "raw"])
@pytest.mark.parametrize("name", ["letterbox", "window", "padded"])
def test_asking_for_frames_changes_no_pixel(
    name: str, stored: str, files: tuple[Path, ...], photos: tuple[Path, ...], device: torch.device
) -> None:
    images = (*files, *photos) if stored == "encoded" else STORED
    both = [loader_of({"train": CROPS[name] | PIXELS}, images, device=device, frames=asked) for asked in (True, False)]
    for _ in range(2):
        for one, other in zip(*both, strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.indices, other.indices)
            assert one.frames is not None
            assert other.frames is None


@pytest.mark.parametrize("name", ["long", "window", "padded"])
def test_frames_of_a_transform(name: str, device: torch.device) -> None:
    aug = {"size": [36, 52], "mean": [0, 0, 0], "std": [1, 1, 1], "train": CROPS[name] | GEOMETRY}
    transform = Transform(load_recipe(aug), device=device, frames=True)
    plain = Transform(load_recipe(aug), device=device)
    for images in (ENCODED, RAMPS):
        targets = torch.zeros(len(images), dtype=torch.int64)
        batch: Batch = transform(images, targets)
        for view, frames in zip(batch.views, batch.view_frames, strict=True):
            pixels = (255 * view).round()
            assert check(pixels, frames, batch.indices) > 10 * SIZE
        without = plain(images, targets)
        assert torch.equal(batch.images, without.images)
        assert without.frames is None


def test_frames_in_numbers() -> None:
    """An image of 16 x 8 px in a square of 8 px: pixel centers at integers, edges half a pixel beyond."""
    image = MemoryImage("it", np.zeros((8, 16, 3), np.uint8))

    def frame(steps: dict[str, Any], *points: tuple[float, float], size: Any = 8) -> list[list[float]]:
        (batch,) = loader_of({"size": size, "val": steps}, (image,), "val")
        return [(batch.frames[0].numpy() @ [x, y, 1])[:2].tolist() for x, y in points]

    edges = (-0.5, -0.5), (15.5, 7.5)
    assert frame({"resize": {}}, *edges, (0, 0)) == [[-0.5, -0.5], [7.5, 7.5], [-0.25, 0]]
    assert frame({"letterbox": {}}, *edges) == [[-0.5, 1.5], [7.5, 5.5]]
    assert frame({"center_crop": {}}, *edges) == [[-4.5, -0.5], [11.5, 7.5]]
    assert frame({"resize": {}, "flip": {}}, *edges, (0, 0)) == [[7.5, -0.5], [-0.5, 7.5], [7.25, 0]]
    half = {"translate": {"x_range": [0.5, 0.5], "y_range": [0, 0]}}
    assert frame({"center_crop": {}, **half}, (4, 0), (5, 1)) == [[4, 0], [5, 1]]
    # Not square, 10 px high and 30 px wide: the largest window of these proportions is 5 1/3 px high.
    assert frame({"resize": {}}, *edges, size=[10, 30]) == [[-0.5, -0.5], [29.5, 9.5]]
    assert frame({"letterbox": {}}, *edges, size=[10, 30]) == [[4.5, -0.5], [24.5, 9.5]]
    np.testing.assert_allclose(frame({"center_crop": {}}, *edges, size=[10, 30]), [[-0.5, -3], [29.5, 12]], atol=1e-5)
    np.testing.assert_allclose(
        frame({"center_crop": {"scale": 0.5}, **half}, *edges, size=[10, 30]), [[-0.5, -10.5], [59.5, 19.5]], atol=1e-5
    )


def test_frames_belong_to_samples(files: tuple[Path, ...]) -> None:
    """In every batch of several ranks, after a resume, and in each pass over validation."""
    aug = {"train": CROPS["window"] | GEOMETRY}
    whole = list(loader_of(aug, files))
    one, other = loader_of(aug, files), loader_of(aug, files)
    next(iter(one))
    other.load_state_dict(saved(one.state_dict()))
    (rest,) = list(other)
    assert torch.equal(rest.frames, whole[1].frames)
    val = loader_of({"val": CROPS["window"] | GEOMETRY}, files, "val")
    first, second = ([batch.frames for batch in val] for _ in range(2))
    assert all(map(torch.equal, first, second))
    assert not any(torch.equal(a, b) for a, b in pairwise(torch.cat(first)))


@pytest.mark.usefixtures("clean_registry")
def test_a_crop_that_says_nothing_of_its_window_is_rejected() -> None:
    @crop(share=Number(default=0.5, doc="share of the image"))
    def corner(source: Any, size: int, share: float) -> Any:
        """Cut the corner."""
        return source.resize(source.decode()[:10, :10], size)

    assert len(list(loader_of({"train": {"corner": {}}}, STORED, frames=False))) == 2
    with pytest.raises(UserError, match=r"^aug\.train\.corner: the window that the op 'corner' shows is unknown"):
        next(iter(loader_of({"train": {"corner": {}}}, STORED)))
