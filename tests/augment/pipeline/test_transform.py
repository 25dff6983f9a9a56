"""A recipe on images in memory: what it takes, what it draws, and that it makes what a loader makes."""

import io
import multiprocessing
import multiprocessing.connection
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from decoded import for_device
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from photos import SIZES, draw_photo
from PIL import Image
from scipy.stats import ks_2samp

from augment import Batch, Number, Range, Recipe, Transform, UserError, crop, load_recipe, local
from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.pipeline.windows import COLUMNS, random_windows
from augment.recipe.plan import build_plan
from augment.recipe.steps import SplitName

SIZE = 24
SEED = 5
CLASSES = 4

PHOTOS = [draw_photo(width, height, seed).copy() for seed, (width, height) in enumerate(SIZES)]
ALIKE = np.stack([draw_photo(40, 30, seed) for seed in range(6)])
TARGETS = [0, 1, 2, 3, 2, 1, 0]

# Everything that draws: windows, places, matrices, a choice of ops, and noise inside of DALI, masked or not.
RANDOM: dict[str, dict[str, Any]] = {
    "windows": {"random_resized_crop": {}},
    "places": {"random_crop": {}},
    "matrices": {"flip": {"p": 0.5}, "rotate": {"p": 0.5}, "hue": {"p": 0.5}},
    "policy": {"rand_augment": {}},
    "gaussian noise": {"gaussian_noise": {"p": 0.5}},
    "shot noise": {"shot_noise": {"p": 0.5}},
    "salt and pepper": {"salt_and_pepper": {}},
    "erase": {"erase": {"fill": "noise", "p": 0.8}},
}
EVERY_DRAW = pytest.mark.parametrize("steps", RANDOM.values(), ids=RANDOM.keys())


def recipe_of(steps: dict[str, Any], split: SplitName = "train", **aug: Any) -> Recipe:
    return load_recipe({"size": SIZE, split: steps} | aug)


def transform_of(
    steps: dict[str, Any], device: torch.device, split: SplitName = "train", seed: int = SEED, **options: Any
) -> Transform:
    return Transform(recipe_of(steps, split), split, device=device, seed=seed, threads=1, **options)


def encoded(pixels: Any) -> bytes:
    """Return an image as PNG, which every decoder reads alike."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.cpu(), other.cpu())


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
        assert same(transform(form), expected), type(form)


def test_images_may_have_several_sizes(device: torch.device) -> None:
    transform = transform_of({"random_resized_crop": {}}, device)
    images = transform(PHOTOS)
    transform.position = 0
    assert same(transform([encoded(photo) for photo in PHOTOS]), images)
    transform.position = 0
    assert same(transform([torch.from_numpy(photo).to(device) for photo in PHOTOS]), images)


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
        (ALIKE.astype(np.float32), "images: float32 (6, 30, 40, 3) is not allowed. Allowed: a uint8 tensor"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "images: uint8 (2, 3, 8, 8) is not allowed. Channels come last:"),
        (ALIKE[0], "images: uint8 (30, 40, 3) is not allowed."),
        (ALIKE[:0], "images: uint8 (0, 30, 40, 3) is not allowed."),
        ([], "images: none are given."),
        (b"...", "images: bytes is not allowed."),
        (iter(ALIKE), "images: iterator is not allowed."),
        ([ALIKE[0], ALIKE[0][..., 0]], "images[1]: uint8 (30, 40) is not allowed."),
        ([ALIKE[0], b"..."], "images[1]: bytes is not allowed."),
        ([Image.new("F", (8, 8))], "images[0]: a PIL image of mode F is not allowed."),
    ],
)  # fmt: skip
def test_images_that_are_not_allowed(images: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        transform_of({}, torch.device("cpu"))(images)


@pytest.mark.parametrize("steps", [{}, {"random_resized_crop": {}}])
def test_bytes_that_are_no_image_are_named_and_the_next_batch_works(
    steps: dict[str, Any], device: torch.device
) -> None:
    transform = transform_of(steps, device)
    good = [encoded(image) for image in ALIKE]
    expected = transform(good)
    unknown = r"of no format that Pillow knows\.$"
    for bad, reason in ((b"no image", unknown), (good[1][:100], "")):
        transform.position = 0
        with pytest.raises(UserError, match=rf"^images\[2\]: cannot be decoded: {reason}"):
            transform([good[0], good[1], bad])
        assert same(transform(good), expected)


def test_windows_of_a_call_that_failed_are_not_used_in_the_next(device: torch.device) -> None:
    # The first view's window does not depend on the image, and is fed before the second view's fails.
    crops = {"first": {}, "second": {"steps": {"random_resized_crop": {}}}}
    recipe = recipe_of({"random_crop": {"scale": 0.5}}, views=crops)
    one, other = (Transform(recipe, device=device, seed=SEED, threads=1) for _ in range(2))
    good = [encoded(image) for image in ALIKE]
    with pytest.raises(UserError, match=r"^images\[0\]: cannot be decoded"):
        one([b"no image", *good[1:]])
    for _ in range(2):
        assert all(map(same, one(good), other(good)))


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


def test_a_forked_process_can_use_a_transform() -> None:
    transform = transform_of({"rotate": {}}, torch.device("cpu"))
    expected = transform(ALIKE)
    transform.position = 0
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(transform(ALIKE).numpy()), daemon=True)
    child.start()
    try:
        assert multiprocessing.connection.wait([queue._reader, child.sentinel], timeout=20) == [queue._reader]
        np.testing.assert_array_equal(queue.get(), expected.numpy())
    finally:
        child.kill()
        child.join()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"^device=cuda: PyTorch sees no GPU here\. Allowed: cpu\."):
        Transform(recipe_of({}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_images_on_the_gpu_need_a_transform_there() -> None:
    with pytest.raises(UserError, match=r"^images: on cuda:0, and the transform runs on cpu\."):
        transform_of({}, torch.device("cpu"))(torch.from_numpy(ALIKE).cuda())
    with pytest.raises(UserError, match=r"^images: some on the CPU and some on the GPU\."):
        transform_of({}, torch.device("cuda"))([torch.from_numpy(ALIKE[0]).cuda(), ALIKE[1]])


# --- what it draws ---


@EVERY_DRAW
def test_a_call_draws_by_its_number_alone(steps: dict[str, Any], device: torch.device) -> None:
    transform = transform_of(steps, device)
    calls = [transform(ALIKE) for _ in range(3)]
    assert not same(calls[0], calls[1])
    assert not same(calls[1], calls[2])
    transform.position = 1
    assert same(transform(ALIKE), calls[1])
    other = transform_of(steps, device)
    other.position = 2
    assert same(other(ALIKE), calls[2])
    assert other.position == 3


@EVERY_DRAW
def test_a_sample_draws_by_its_place_in_the_batch_whatever_its_size(
    steps: dict[str, Any], device: torch.device
) -> None:
    transform = transform_of(steps, device)
    few = transform(ALIKE[:2])
    for images in (ALIKE, ALIKE[:2]):  # a larger batch than the first one, and a smaller one again
        transform.position = 0
        assert same(transform(images)[:2], few)


@pytest.mark.parametrize("changed", [{"seed": SEED + 1}, {"split": "val"}, {"rank": 1}])
def test_seed_split_and_rank_draw_otherwise(changed: dict[str, Any]) -> None:
    for steps in (RANDOM["windows"], RANDOM["matrices"], RANDOM["gaussian noise"]):
        ones, others = (transform_of(steps, torch.device("cpu"), **options)(ALIKE) for options in ({}, changed))
        assert not same(ones, others)


def test_the_seed_is_that_of_the_recipe_unless_it_is_given() -> None:
    recipe = load_recipe({"size": SIZE, "train": RANDOM["matrices"]}, f"seed={SEED}")
    assert same(Transform(recipe, device="cpu")(ALIKE), transform_of(RANDOM["matrices"], torch.device("cpu"))(ALIKE))


@pytest.mark.parametrize("height", [3, 30, 200])
@pytest.mark.parametrize("width", [2, 40, 300])
@pytest.mark.parametrize(
    ("area", "aspect"),
    [((0.35, 1.0), (3 / 4, 4 / 3)), ((0.1, 0.3), (0.9, 1.1)), ((0.9, 1.0), (2.0, 3.0)), ((0.01, 0.02), (0.01, 100))],
)
def test_windows_come_from_the_distribution_of_dali(
    height: int, width: int, area: tuple[float, float], aspect: tuple[float, float]
) -> None:
    count = 4000
    pipeline = Pipeline(batch_size=count, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        shape = types.Constant(np.array([height, width], np.int64))
        ranges = {"random_area": list(area), "random_aspect_ratio": list(aspect)}
        pipeline.set_outputs(*fn.random_crop_generator(shape, **ranges, seed=SEED))
    start, sides = (np.asarray(output.as_tensor()) for output in pipeline.run())
    uniform = np.random.default_rng(SEED).random((count, COLUMNS))
    drawn = random_windows(uniform, np.tile([height, width], (count, 1)), area, aspect)
    assert (drawn[:, :2] >= 0).all()
    assert (drawn[:, 2:] <= [height, width]).all()
    ours = [*drawn[:, :2].T, *(drawn[:, 2:] - drawn[:, :2]).T]
    for mine, theirs in zip(ours, [*start.T, *sides.T], strict=True):
        assert ks_2samp(mine, theirs, method="asymp").pvalue > 0.001  # 144 comparisons, of a fixed seed
    # Area and position belong together: windows of large images have no single side or place.
    assert ks_2samp(ours[2] * ours[3] + ours[0], sides.prod(axis=1) + start[:, 0], method="asymp").pvalue > 0.001


def test_places_of_random_crop_are_uniform() -> None:
    """A gray level a column: the image of the window tells where it was cut."""
    ramp = np.repeat(np.arange(40, dtype=np.uint8)[None, :, None], 24, axis=0).repeat(3, axis=2)
    recipe = recipe_of({"random_crop": {"padding": 0}}, mean=[0, 0, 0], std=[1, 1, 1])
    images = Transform(recipe, device="cpu", seed=SEED, threads=1)(np.stack([ramp] * 3400))
    lefts = (images[:, 0, 0, 0] * 255).round().int()
    counts = np.bincount(lefts, minlength=17)
    assert len(counts) == 17
    assert ((counts - 200) ** 2 / 200).sum() < 39.3  # chi-square, 16 degrees of freedom, p = .001


def test_an_op_that_sets_its_seed_is_refused(clean_registry: None) -> None:
    @local(random=True, std_range=Range(default=(1, 2), within=(0, 9), doc="noise"))
    def seeded_noise(images: Any, dali: Any, std: Any) -> Any:
        """Add noise."""
        return dali.fn.noise.gaussian(images, stddev=std, seed=dali.seed)

    message = r"^aug\.train\.seeded_noise: `dali\.seed` .* Allowed: \*\*dali\.random in its place\."
    with pytest.raises(UserError, match=message):
        transform_of({"seeded_noise": {}}, torch.device("cpu"))


def test_a_crop_that_draws_by_itself_is_refused(clean_registry: None) -> None:
    @crop(random=True, share=Number(default=0.5, within=(0, 1), doc="of the sides"))
    def own_crop(source: Any, size: int, share: float) -> Any:
        """Cut somewhere."""
        return source.resize(fn.crop(source.decode(), crop=[8, 8], crop_pos_x=fn.random.uniform(range=[0, 1])), size)

    with pytest.raises(UserError, match=r"^aug\.train\.own_crop: draws by itself, which no call can repeat\."):
        transform_of({"own_crop": {}}, torch.device("cpu"))


# --- as a loader makes it ---


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = tmp_path_factory.mktemp("stored")
    files = tuple(folder / f"{number}.png" for number in range(len(PHOTOS)))
    for file, photo in zip(files, PHOTOS, strict=True):
        Image.fromarray(photo).save(file)
    return Split(files, tuple(TARGETS))


def first_batch(recipe: Recipe, split: SplitName, stored: Split, device: torch.device) -> Batch:
    plan = build_plan(recipe.aug, split)
    images = Split(for_device(stored.files, device), stored.targets)
    batches: Iterator[Batch] = iter(
        Loader(plan, images, batch_size=len(stored), seed=SEED, device=device, classes=CLASSES)
    )
    return next(batches)


@pytest.mark.parametrize("name", ["imagenette", "finetune", "imagenette_2019", "strong", "none"])
def test_validation_is_that_of_a_loader(name: str, stored: Split, device: torch.device) -> None:
    recipe = load_recipe(name, f"aug.size={SIZE}")
    expected = first_batch(recipe, "val", stored, device)
    transform = Transform(recipe, "val", device=device, seed=SEED)
    made = transform(PHOTOS, TARGETS)
    assert same(made.images, expected.images)
    assert same(made.targets, expected.targets)
    assert made.indices.tolist() == list(range(len(PHOTOS)))
    assert same(transform([file.read_bytes() for file in stored.files]), expected.images)


@pytest.mark.parametrize(
    "steps",
    [
        {"center_crop": {}, "flip": {"p": 0.5}, "rotate": {"p": 0.5}, "hue": {"p": 0.5}, "gaussian_blur": {"p": 0.5}},
        {"letterbox": {}, "rand_augment": {}},
        {"resize": {"side": "short"}, "contrast": {}, "posterize": {"p": 0.5}, "mixup": {}},
        {"flip": {"p": 0.5}, "cutmix": {"p": 0.5}},
    ],
)
def test_the_first_call_draws_as_the_first_batch_of_a_loader(
    steps: dict[str, Any], stored: Split, device: torch.device
) -> None:
    """Windows and noise apart, which DALI draws there."""
    recipe = load_recipe({"size": SIZE, "train": steps})
    expected = first_batch(recipe, "train", stored, device)
    order = expected.indices.tolist()
    transform = Transform(recipe, device=device, seed=SEED, classes=CLASSES)
    made = transform([PHOTOS[i] for i in order], [TARGETS[i] for i in order])
    assert same(made.images, expected.images)
    assert same(made.targets, expected.targets)


@pytest.mark.parametrize("crop_of_views", ["own", "same"])
def test_views(crop_of_views: str, device: torch.device) -> None:
    views = {"count": 3, "crop": crop_of_views}
    recipe = recipe_of({"random_resized_crop": {}}, views=views)
    transform = Transform(recipe, device=device, seed=SEED)
    first, second, third = transform(ALIKE)
    assert same(first, second) == same(second, third) == (crop_of_views == "same")
    transform.position = 0
    batch = transform(ALIKE, [0] * len(ALIKE))
    assert [same(one, other) for one, other in zip(batch.views, (first, second, third), strict=True)] == [True] * 3
    assert same(batch.images, first)
    assert same(first, Transform(recipe_of({"random_resized_crop": {}}), device=device, seed=SEED)(ALIKE))


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
        (None, "targets: missing, and mixup mixes them. Allowed: transform(images, targets)."),
        ([0, 1], "targets: (2,) int64 for 6 images. Allowed: (6,) class indices, or (6, K) floats."),
        ([[0]] * 6, "targets: (6, 1) int64 for 6 images."),
        ([0.5] * 6, "targets: (6,) float32 for 6 images."),
        (3, "targets: () int64 for 6 images."),
        (["cat"] * 6, "targets: no tensor can be made of them: too many dimensions 'str'. Allowed: (6,) class"),
        ([0] * 6, "classes: missing, and mixup mixes class indices. Allowed: Transform(..., classes=N)."),
    ],
)
def test_targets_that_are_not_allowed(targets: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        transform_of({"mixup": {}}, torch.device("cpu"))(ALIKE, targets)


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_class_that_does_not_exist_is_named(wrong: int) -> None:
    transform = transform_of({"mixup": {}}, torch.device("cpu"), classes=CLASSES)
    with pytest.raises(UserError, match=f"^targets: there is no class {wrong}. Allowed: 0 to 3.$"):
        transform(ALIKE, [0, 1, 2, 3, wrong, 0])


def test_a_refused_call_does_not_count() -> None:
    transform = transform_of({"rotate": {}}, torch.device("cpu"))
    for mistake in ((PHOTOS, [0]), ([b""],), ([],)):
        with pytest.raises(UserError):
            transform(*mistake)
    assert transform.position == 0
