"""A recipe on images in memory: what it draws, and that it makes what a loader makes."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from decoded import for_device
from lazily import LazyModule
from loaders import build_loader
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from PIL import Image
from transforms import ALIKE, CLASSES, PHOTOS, SEED, SIZE, TARGETS, recipe_of, same, transform_of

from augment import Batch, Number, Recipe, Transform, UserError, crop, load_recipe, local
from augment.data.dataset import Split
from augment.pipeline.geometry.frames import COLUMNS, random_windows
from augment.recipe.plan import build_plan
from augment.recipe.sampler import CALL, Sampler
from augment.recipe.steps import SplitName

stats = LazyModule("scipy.stats")

# Everything that draws: windows, places, matrices, a choice of ops, and noise inside of DALI, masked or not.
RANDOM: dict[str, dict[str, Any]] = {
    "windows": {"random_resized_crop": {}},
    "places": {"random_crop": {}},
    "matrices": {"flip": {"p": 0.5}, "rotate": {"p": 0.5}, "hue": {"p": 0.5}},
    "policy": {"rand_augment": {}},
    "gaussian noise": {"gaussian_noise": {"p": 0.5}},
    "salt and pepper": {"salt_and_pepper": {}},
    "erase": {"erase": {"fill": "noise", "p": 0.8}},
}
EVERY_DRAW = pytest.mark.parametrize("steps", RANDOM.values(), ids=RANDOM.keys())


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
    # A sample draws by its place in the batch, whatever the size of that.
    for images in (ALIKE[:2], ALIKE, ALIKE[:2]):
        other.position = 2
        assert same(other(images)[:2], calls[2][:2])


@pytest.mark.parametrize("batch", [3, 8])
def test_several_calls_are_drawn_at_once_as_one_by_one(batch: int) -> None:
    plan = build_plan(recipe_of({"rand_augment": {}}).aug, "train")
    made = Sampler(plan, SEED).draw(0, 5 * CALL, batch, calls=4)
    single = [Sampler(plan, SEED).draw(0, call * CALL, batch) for call in range(5, 9)]
    for key, drawn in made.items():
        for name, values in drawn.items():
            np.testing.assert_array_equal(values, np.concatenate([call[key][name] for call in single]))


def test_calls_mix_as_one_by_one() -> None:
    steps = {"one_of": {"p": 0.8, "steps": {"mixup": {}, "cutmix": {}}}}
    transform, other = (transform_of(steps, torch.device("cpu"), classes=CLASSES) for _ in range(2))
    batches = [transform(ALIKE, targets) for targets in (*[TARGETS[:6]] * 5, np.eye(6, dtype=np.float32))]
    for call, size in ((5, 6), (4, 6), (1, 6), (2, 6), (3, 4), (4, 6)):
        other.position = call
        targets = np.eye(6, dtype=np.float32) if call == 5 else TARGETS
        made = other(ALIKE[:size], targets[:size])
        # The partner of the last image is the first one.
        assert torch.equal(made.targets[: size - 1], batches[call].targets[: size - 1])
        assert torch.equal(made.images[: size - 1], batches[call].images[: size - 1])


@cache
def plain(name: str) -> torch.Tensor:
    return transform_of(RANDOM[name], torch.device("cpu"))(ALIKE)


@pytest.mark.parametrize("changed", [{"seed": SEED + 1}, {"split": "val"}, {"rank": 1}])
def test_seed_split_and_rank_draw_otherwise(changed: dict[str, Any]) -> None:
    for name in ("windows", "gaussian noise"):
        assert not same(plain(name), transform_of(RANDOM[name], torch.device("cpu"), **changed)(ALIKE))


@pytest.mark.parametrize(("height", "width"), [(30, 40), (200, 2)])
@pytest.mark.parametrize(
    ("area", "aspect"), [((0.35, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (2.0, 3.0)), ((0.01, 0.02), (0.01, 100))]
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
        assert stats.ks_2samp(mine, theirs, method="asymp").pvalue > 0.001  # 24 comparisons, of a fixed seed
    # Area and position belong together: windows of large images have no single side or place.
    assert stats.ks_2samp(ours[2] * ours[3] + ours[0], sides.prod(axis=1) + start[:, 0], method="asymp").pvalue > 0.001


def test_an_op_that_does_not_declare_its_draws_is_rejected(clean_registry: None, stored: Split) -> None:
    """Its draws in validation would differ between epochs."""

    @local()
    def secret_noise(images: Any, dali: Any) -> Any:
        """Add noise."""
        return dali.fn.noise.gaussian(images, stddev=9, **dali.random)

    recipe = recipe_of({"resize": {}, "secret_noise": {}})
    for make in (
        lambda: Transform(recipe, device="cpu"),
        lambda: first_batch(recipe, "train", stored, torch.device("cpu")),
    ):
        with pytest.raises(UserError, match=r"^aug\.train\.secret_noise: its random draws .* with random=True"):
            make()


def test_operators_of_an_op_draw_independently(clean_registry: None, stored: Split, device: torch.device) -> None:
    @local(random=True)
    def different(images: Any, dali: Any) -> Any:
        """Return where two draws differ."""
        one, two = (dali.fn.random.uniform(images, range=[0, 99], dtype=types.UINT8, **dali.random) for _ in range(2))
        return dali.fn.reshape(dali.fn.cast(one != two, dtype=types.UINT8) * 255, layout="HWC")

    recipe = recipe_of({"resize": {}, "different": {}}, mean=[0, 0, 0], std=[1, 1, 1])
    made = Transform(recipe, device=device, seed=SEED)(ALIKE), first_batch(recipe, "train", stored, device).images
    assert [images.mean().item() for images in made] == [pytest.approx(0.99, abs=0.02)] * 2


def test_a_crop_that_draws_by_itself_is_rejected(clean_registry: None) -> None:
    @crop(random=True, share=Number(default=0.5, within=(0, 1), doc="of the sides"))
    def own_crop(source: Any, size: int, share: float) -> Any:
        """Cut somewhere."""
        return source.resize(fn.crop(source.decode(), crop=[8, 8], crop_pos_x=fn.random.uniform(range=[0, 1])), size)

    with pytest.raises(UserError, match=r"^aug\.train\.own_crop: .* no call can be repeated\."):
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
    classes = [str(number) for number in range(CLASSES)]
    return next(iter(build_loader(plan, images, batch_size=len(stored), seed=SEED, device=device, classes=classes)))


@pytest.mark.parametrize("name", ["imagenette", "finetune", "none"])
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
