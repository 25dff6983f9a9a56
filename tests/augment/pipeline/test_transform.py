"""A recipe on images in memory: the images and targets that it takes, threads and processes."""

import io
import multiprocessing
import multiprocessing.connection
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import draw_photo
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from transforms import ALIKE, CLASSES, PHOTOS, SIZE, TARGETS, encoded, recipe_of, same, transform_of

from augment import PixelFormat, Transform, UserError, load_recipe
from augment.pipeline.graph.parameter_feed import DrawAheadOfCalls
from augment.recipe.sampler import CALL, SampleRange


@cache
def shared(step: str = "") -> Transform:
    """Return the transform of the tests of what is rejected."""
    return transform_of({step: {}} if step else {}, torch.device("cpu"))


# --- what it takes ---


def test_images_may_be_given_in_many_forms(device: torch.device) -> None:
    transform = transform_of({"random_resized_crop": {}, "rotate": {"p": 0.5}}, device)
    forms: list[Any] = [
        ALIKE,
        torch.from_numpy(ALIKE),
        torch.from_numpy(ALIKE).to(device),
        torch.from_numpy(ALIKE).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1).to(device),
        list(ALIKE),
        list(torch.from_numpy(ALIKE).to(device)),
        [Image.fromarray(image) for image in ALIKE],
        [encoded(image) for image in ALIKE],
        [memoryview(encoded(image)) for image in ALIKE],
    ]
    expected = transform(ALIKE)
    assert (expected.shape, expected.dtype, expected.device.type) == ((6, 3, SIZE, SIZE), torch.float32, device.type)
    assert expected.is_contiguous(memory_format=torch.channels_last)
    for form in forms:
        transform.position = 0
        found = transform(form)
        # On a GPU, kernels crop a batch that lies there, and may round a level otherwise than DALI.
        direct = isinstance(form, Tensor) and form.is_cuda
        assert (found - expected).abs().max() < 0.02 if direct else same(found, expected), type(form)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_encoded_images_are_upright(orientation: int) -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(draw_photo(200, 16, 3)).save(file, "png", exif=exif)
    transform = transform_of(
        {"random_resized_crop": {"area_range": [0.9, 1], "aspect_range": [0.01, 100]}}, torch.device("cpu")
    )
    images = transform([file.getvalue()] * 20)
    transform.position = 0
    # Windows are drawn for the sides of the upright image; Pillow turns it by itself.
    np.testing.assert_array_equal(images, transform([Image.open(file)] * 20))


def test_half(device: torch.device) -> None:
    whole, half = (transform_of({"rotate": {}}, device, half=half)(ALIKE) for half in (False, True))
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), whole, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (ALIKE.astype(np.float32), "images: float32 (6, 30, 40, 3) is not allowed. Remove ToTensor and"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "images: uint8 (2, 3, 8, 8) is not allowed. Move the channels"),
        (ALIKE[0], "images: uint8 (30, 40, 3) is not allowed. Pass a single image in a list."),
        (ALIKE[..., 0], "images: uint8 (6, 30, 40) is not allowed. Gray images need three channels: np.stack([gray] *"),
        (np.zeros((2, 8, 8, 4), np.uint8), "images: uint8 (2, 8, 8, 4) is not allowed. Remove the alpha channel: "),
        (ALIKE[:0], "images: uint8 (0, 30, 40, 3) is not allowed. Allowed: "),
        ([], "images: the list is empty."),
        (b"...", "images: bytes is not allowed. Pass a single image in a list."),
        (Image.new("L", (8, 8)), "images: Image is not allowed. Pass a single image in a list."),
        ("a.jpg", "images: str is not allowed. Read a file with Path(file).read_bytes()."),
        ([Path("a.jpg")], "images[0]: PosixPath is not allowed. Read a file with Path(file).read_bytes()."),
        ([ALIKE[0].astype(int)], "images[0]: int64 (30, 40, 3) is not allowed. Allowed: "),
        (iter(ALIKE), "images: iterator is not allowed."),
        ([ALIKE[0], ALIKE[0][..., 0]], "images[1]: uint8 (30, 40) is not allowed. Gray images"),
        ([ALIKE[0], b"..."], "images[1]: bytes is not allowed. Allowed: "),
        ([Image.new("F", (8, 8))], "images[0]: a PIL image of mode F is not allowed."),
        ([Image.new("I", (8, 8))], "images[0]: a PIL image of mode I is not allowed."),
        ([Image.open(io.BytesIO(encoded(ALIKE[0])[:900]))], "images[0] cannot be decoded: image file is truncated"),
        ([torch.zeros(3, 8, 8).byte()], "images[0]: uint8 (3, 8, 8) is not allowed. Move the channels last: image"),
        ([b"P5\n1 1\n1023\n!!"], "images[0] is a PPM variant that DALI does not decode (levels from 0 to 1023)."),
        ([encoded(ALIKE[0, ..., 0] * 1.0, "TIFF")], "images[0] is a float TIFF with values from 79 to 172. Scale them"),
        ([encoded(ALIKE[0], "GIF")], "images[0] is not an image that DALI decodes. Allowed: JPEG, PNG,"),
    ],
)  # fmt: skip
def test_images_that_are_not_allowed(images: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        shared()(images)


@pytest.mark.parametrize("steps", [{}, {"random_resized_crop": {}}])
def test_bytes_that_are_no_image_are_named_and_the_next_batch_works(
    steps: dict[str, Any], device: torch.device
) -> None:
    transform = transform_of(steps, device)
    good = [encoded(image) for image in ALIKE]
    expected = transform(good)
    unknown = "is not an image that DALI decodes. Allowed: JPEG, PNG"
    for bad, reason in ((b"no image", unknown), (b"", r"is empty \(0 bytes\)"), (good[1][:100], "is broken: ")):
        transform.position = 0
        with pytest.raises(UserError, match=rf"^images\[2\] {reason}"):
            transform([good[0], good[1], bad])
        assert same(transform(good), expected)


def test_a_pickled_transform_goes_on() -> None:
    steps = {"random_resized_crop": {}, "rand_augment": {}, "gaussian_noise": {"p": 0.5}, "mixup": {"p": 0.5}}
    transform = transform_of(steps, torch.device("cpu"), classes=CLASSES)
    transform(ALIKE, TARGETS[:6])
    again = pickle.loads(pickle.dumps(transform))
    assert again.position == 1
    assert torch.equal(again(ALIKE, TARGETS[:6]).images, transform(ALIKE, TARGETS[:6]).images)


def test_threads_share_a_transform() -> None:
    transform = transform_of({}, torch.device("cpu"))
    levels = range(0, 200, 50)

    def work(level: int) -> list[float]:
        batch = np.full((2, SIZE, SIZE, 3), level, np.uint8)
        return [float(transform(batch)[0, 0, 0, 0]) for _ in range(20)]

    with ThreadPoolExecutor(len(levels)) as pool:
        found = list(pool.map(work, levels))
    assert [len(set(some)) for some in found] == [1] * len(levels)
    assert sorted({some[0] for some in found}) == [some[0] for some in found]
    assert transform.position == 20 * len(levels)


def test_a_forked_process_can_use_a_transform_and_draws_otherwise() -> None:
    transform = transform_of({"rotate": {}}, torch.device("cpu"))
    ours = transform(ALIKE)
    transform.position = 0
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(transform(ALIKE).numpy()), daemon=True)
    child.start()
    try:
        assert multiprocessing.connection.wait([queue._reader, child.sentinel], timeout=20) == [queue._reader]
        assert not np.array_equal(queue.get(), ours.numpy())
    finally:
        child.kill()
        child.join()
    transform.position = 0
    assert same(transform(ALIKE), ours)


def test_workers_of_a_data_loader_draw_differently_in_each_epoch_by_the_seed_of_pytorch() -> None:
    targets = torch.eye(len(ALIKE))
    transform = transform_of({"rotate": {}, "mixup": {}}, torch.device("cpu"))

    def collate(indices: list[int]) -> Any:
        batch = transform(ALIKE, targets)
        return batch.images, batch.targets

    def epochs(seed: int, count: int) -> list[tuple[Tensor, Tensor]]:
        batches = DataLoader(range(2), 1, num_workers=2, collate_fn=collate, multiprocessing_context="fork")
        torch.manual_seed(seed)
        return [batch for _ in range(count) for batch in batches]

    first, again, other = epochs(0, 2), epochs(0, 1), epochs(1, 1)
    for kind in range(2):  # images, and the shares they are mixed in
        assert len({batch[kind].numpy().tobytes() for batch in (*first, *other)}) == 6
        assert all(same(one[kind], two[kind]) for one, two in zip(first, again, strict=False))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"^device=cuda: PyTorch sees no GPU here\. Allowed: auto, cpu\."):
        Transform(recipe_of({}), device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_images_on_the_gpu_need_a_transform_there() -> None:
    with pytest.raises(UserError, match=r"^images: the input is on cuda:0, but the transform runs on cpu\."):
        transform_of({}, torch.device("cpu"))(torch.from_numpy(ALIKE).cuda())
    with pytest.raises(UserError, match=r"^images: some are on the CPU and some on the GPU\."):
        transform_of({}, torch.device("cuda"))([torch.from_numpy(ALIKE[0]).cuda(), ALIKE[1]])


# --- targets ---


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor])
def test_targets_make_a_batch(convert: Callable[[Any], Any], device: torch.device) -> None:
    batch = transform_of({"flip": {}}, device)(PHOTOS, convert(TARGETS))
    images, targets = batch
    assert images is batch.images
    assert (targets.dtype, targets.device.type, targets.tolist()) == (torch.int64, device.type, TARGETS)
    batch.targets = targets + 1  # as what moves batches between devices does
    assert len(batch) == len(PHOTOS)


def test_labels_and_numbers_are_floats() -> None:
    targets = np.arange(12, dtype=np.float64).reshape(6, 2)
    batch = transform_of({"mixup": {}}, torch.device("cpu"))(ALIKE, targets)
    assert (batch.targets.dtype, batch.targets.shape) == (torch.float32, (6, 2))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (None, "targets are missing, but mixup mixes them. Call transform(images, targets)."),
        ([0, 1], "targets: (2,) int64 for 6 images. Allowed: (6,) class indices, or (6, K) floats."),
        ([[0]] * 6, "targets: (6, 1) int64 for 6 images."),
        ([0.5] * 6, "targets: (6,) float32 for 6 images."),
        (3, "targets: () int64 for 6 images."),
        (["cat"] * 6, "targets cannot be converted to a tensor: too many dimensions 'str'. Allowed: (6,) class"),
        ([0] * 6, "classes is missing, but mixup mixes class indices. Call Transform(..., classes=N)."),
    ],
)
def test_targets_that_are_not_allowed(targets: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        shared("mixup")(ALIKE, targets)


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_class_that_does_not_exist_is_named(wrong: int) -> None:
    transform = transform_of({"mixup": {}}, torch.device("cpu"), classes=CLASSES)
    with pytest.raises(UserError, match=f"^targets: class {wrong} does not exist. Allowed: 0 to 3.$"):
        transform(ALIKE, [0, 1, 2, 3, wrong, 0])


def test_a_gray_array_needs_its_channel() -> None:
    recipe = load_recipe({"size": 8, "mean": [0.5], "std": [0.25]})
    transform = Transform(recipe, device="cpu", pixels=PixelFormat.of(1, "uint16"))
    with pytest.raises(UserError, match=r"Add the channel: image\[\.\.\., None\]"):
        transform([np.zeros((8, 8), np.uint16)])
    with pytest.raises(UserError, match="Pass a single image in a list"):
        transform(np.zeros((8, 8, 1), np.uint16))
    with pytest.raises(UserError, match="Pass arrays of 1 channel of uint16"):
        transform("photo.png")


def test_values_are_drawn_for_ever_more_calls_up_to_a_limit() -> None:
    drawn: list[SampleRange] = []

    def draw(where: SampleRange) -> SampleRange:
        drawn.append(where)
        return where

    ahead = DrawAheadOfCalls(draw, together=8)
    for call in range(12):
        ahead.take(0, call * CALL, 4)
    assert [(where.size, where.calls) for where in drawn] == [(4, 1), (4, 2), (4, 4), (4, 4), (4, 4)]
