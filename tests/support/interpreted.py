"""Run programs in Triton's interpreter, which must be switched on before Triton is imported: a process of its own.

Prints JSON:

- policies: how far the kernel is from DALI's operators, for each case, and whether a loader resumes.
- noise: statistics of noise.
- local: how far each local op is from DALI's operators.
- bounds: how many numbers each op writes beyond its memory.
- mixed: how far mixed batches are from those of PyTorch's operators.
- direct: how far decoded images that kernels crop and change are from what DALI makes of them, in levels.
- channels: the same for other pixel formats than RGB, and statistics of their noise.

Without the argument --every, only some cases, because each takes about a second.
"""

import json
import os
import sys
from dataclasses import replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from compressed import compressed
from loaders import build_loader
from photos import draw_photo
from pipelines import SEED, Pixels, plan_of, run

from augment import load_recipe
from augment.data.dataset import Split
from augment.data.images import MemoryImage
from augment.data.targets.classification import CLASSES
from augment.data.targets.multilabel import LABELS
from augment.params.pixel_format import DTYPES, RGB, PixelFormat
from augment.pipeline import transform
from augment.pipeline.geometry import batch_assembly
from augment.pipeline.geometry.batch_assembly import Mixer
from augment.pipeline.graph import build
from augment.pipeline.graph.decoding import OutputFormat
from augment.pipeline.images_in_memory import InputImages, read_images
from augment.pipeline.kernels import any_channels, mix
from augment.pipeline.kernels import stages as kernels
from augment.pipeline.kernels.decoded_images import KernelTransform
from augment.pipeline.kernels.instructions import Program
from augment.pipeline.kernels.opcodes import CODES
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler, SampleRange

HEIGHT, WIDTH = SIZE = (25, 33)  # odd, so that the last block of pixels is not full
CPU = torch.device("cpu")
FLAT = MemoryImage("flat", np.full((HEIGHT, WIDTH, 3), 77, np.uint8))
PHOTOS = (*(MemoryImage(str(seed), draw_photo(WIDTH, HEIGHT, seed)) for seed in range(7)), FLAT)
OPERATORS = build.program_of
EVERY = sys.argv[1:] == ["--every"]


def some(cases: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the cases with these names, or all."""
    return {name: case for name, case in cases.items() if EVERY or name in names}


def kernel(plan: Any, *_: Any) -> Program:
    program = Program.of(plan)
    assert program is not None
    return program


def kernel_of(plan: Any, *_: Any) -> Program:
    """Return the program of a plan that DALI's operators would run as fast."""
    return Program(plan)


def compare(steps: dict[str, Any]) -> dict[str, Any]:
    """Return the largest and the mean difference, and whether skipped samples are the same to the bit."""
    plan = plan_of(steps, size=SIZE)
    off = np.abs(rendered(plan, PHOTOS, kernel) - rendered(plan, PHOTOS, OPERATORS))
    draws = Sampler(plan, SEED).draw(0, 0, len(PHOTOS))
    skipped = ~np.logical_or.reduce([stage.applied(draws) for stage in plan.image_stages])
    return {"most": int(off.max()), "mean": float(off.mean()), "skipped": int(off[skipped].sum())}


def rendered(plan: Any, photos: tuple[MemoryImage, ...], by: Any, **options: Any) -> Pixels:
    """Return what the kernel, or what DALI's operators make of images."""
    build.program_of = by
    return run(plan, photos, CPU, **options)[0].astype(int)


def resume() -> bool:
    """Return whether a loader of two views resumes within an epoch to the same batches, normalized."""
    steps = {"gamma": {"p": 0.5}, "flip": {}, "equalize": {"p": 0.5}, "gaussian_noise": {}, "erase": {"fill": "noise"}}
    plan = plan_of(steps, "train", SIZE, views={"count": 2})
    build.program_of = kernel_of

    def loader() -> Loader:
        return build_loader(plan, Split(PHOTOS[:4], (0,) * 4), batch_size=2, seed=1)

    one, other = loader(), loader()
    batches = iter(one)
    next(batches)
    other.load_state_dict(one.state_dict())
    rest, again = list(batches), list(other)
    assert all(view.is_contiguous(memory_format=torch.channels_last) for batch in rest for view in batch.views)
    assert rest[0].images.abs().max() < 3  # normalized
    assert not torch.equal(rest[0].views[0], rest[0].views[1])
    pairs = [pair for x, y in zip(rest, again, strict=True) for pair in zip(x.views, y.views, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


def transformed() -> bool:
    """Return whether the first call of a transform makes what a loader's first batch is."""
    build.program_of = transform.program_of = kernel
    recipe = load_recipe(
        {"size": SIZE, "train": {"resize": {}, "gamma": {}, "trivial_augment": {}, "gaussian_noise": {}}}
    )
    plan = build_plan(recipe.aug, "train")
    batch = next(iter(build_loader(plan, Split(PHOTOS, (0,) * len(PHOTOS)), batch_size=4, seed=1)))
    images = transform.Transform(recipe, device="cpu", seed=1)([PHOTOS[i].pixels for i in batch.indices.tolist()])
    return torch.equal(images, batch.images)


# Each local op, with height and width of the images, and how many. From sides of 25 px, operators of the CPU and the
# GPU enlarge differently where two pixels are equally near. What is wider than an image reaches beyond its mirror
# image, too.
LOCAL: dict[str, tuple[tuple[int, int], int, dict[str, Any]]] = {
    "blur": ((25, 33), 2, {"gaussian_blur": {"p": 0.8}}),
    "blur of no width": ((9, 9), 1, {"gaussian_blur": {"sigma_range": [1e-25, 1e-25]}}),
    "blur wider than the image": ((8, 11), 1, {"gaussian_blur": {"sigma_range": [3.7, 4.3]}}),
    "motion": ((33, 25), 2, {"motion_blur": {"p": 0.8}}),
    "motion wider than the image": ((24, 8), 1, {"motion_blur": {"length_range": [23, 25]}}),
    "nearest": ((16, 24), 2, {"downscale": {"scale_range": [0.1, 1]}}),
    "linear": ((25, 33), 2, {"downscale": {"interpolation": "linear", "p": 0.8}}),
    "hole": ((25, 33), 3, {"erase": {"level": 99, "p": 0.8}}),
    "hole of the mean": ((33, 25), 3, {"erase": {"fill": "mean"}}),
    "several": (
        (24, 24),
        3,
        {
            "rotate": {"p": 0.5},
            "one_of": {"p": 0.8, "steps": {"gaussian_blur": {}, "motion_blur": {}, "sharpen": {}, "downscale": {}}},
            "erase": {"p": 0.5},
        },
    ),
}


def local() -> dict[str, Any]:
    """Return how far each local op is from DALI's operators, and JPEG in color from what DALI does on the GPU."""
    kernels._BLOCK = 512  # several for an image

    def off(plan: Any, photos: tuple[MemoryImage, ...], expected: Pixels) -> dict[str, float]:
        apart = np.abs(rendered(plan, photos, kernel_of) - expected)
        return {"most": int(apart.max()), "mean": float(apart.mean()), "beyond": float((apart > 1).mean())}

    found: dict[str, Any] = {}
    for name, (size, count, steps) in some(LOCAL, "blur", "motion", "nearest", "hole of the mean", "several").items():
        photos = tuple(MemoryImage(str(seed), draw_photo(*size[::-1], seed)) for seed in range(count))
        plan = plan_of(steps, size=size)
        found[name] = off(plan, photos, rendered(plan, photos, OPERATORS))
    compression = {}
    for size, lowest, highest in (((25, 25), 30, 90), ((32, 51), 1, 100))[: 1 + EVERY]:
        plan = plan_of({"jpeg": {"quality_range": [lowest, highest]}}, size=size)
        # Gray ones without texture, as DALI's operator on the CPU rounds otherwise; with it, each coefficient counts.
        smooth = {str(seed): draw_photo(*size[::-1], seed) for seed in range(2)}
        gray = tuple(MemoryImage(name, pixels[..., :1].repeat(3, axis=2)) for name, pixels in smooth.items())
        photos = tuple(MemoryImage(name, textured(pixels)) for name, pixels in smooth.items())
        quality = Sampler(plan, SEED).draw(0, 0, len(photos))["jpeg"]["quality"].astype(int).tolist()
        expected = np.stack([compressed(photo.pixels, q) for photo, q in zip(photos, quality, strict=True)])
        compression[f"{size[1]} px"] = off(plan, photos, expected)
        if size == (25, 25):  # one size is enough: each takes seconds in the interpreter
            compression[f"{size[1]} px, gray"] = off(plan, gray, rendered(plan, gray, OPERATORS))
    return {"off": found, "compression": compression}


def textured(pixels: Pixels) -> Pixels:
    """Return an image with fine texture."""
    texture = np.random.default_rng(0).integers(-25, 26, pixels.shape)
    return np.clip(pixels + texture, 0, 255).astype(np.uint8)


# An op for each number by which the kernel knows one.
OPS: dict[str, dict[str, Any]] = {
    "rotate": {},
    "brightness": {},
    "contrast": {"pivot": "mean"},
    "sharpen": {},
    "posterize": {},
    "solarize": {},
    "autocontrast": {},
    "equalize": {},
    "gaussian_blur": {},
    "motion_blur": {},
    "gaussian_noise": {},
    "jpeg": {},
    "downscale": {},
    "erase": {},
}


def bounds() -> dict[str, int]:
    """Return how many numbers each op writes beyond the end of the memory that it is given."""
    kernels._BLOCK, size = 512, (21, 27)  # several for an image and for its blocks of a JPEG, the last one not full
    empty, guards = torch.empty, []

    def guarded(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        count = int(np.prod(shape))
        whole = torch.full((count + 4 * 512,), 77, **options)
        guards.append(whole[count:])
        return whole[:count].view(shape)

    found, codes = {}, set()
    for name, step in OPS.items():
        # The second stage writes to the last buffer.
        plan = plan_of({"first": {"op": "posterize"}, "second": {"op": name, **step}}, size=size)
        program, image = Program(plan), torch.tensor(draw_photo(*size[::-1], 0))[None]
        programs = torch.from_numpy(program.values(Sampler(plan, SEED), SampleRange(0, 0, 1)))
        guards.clear()
        torch.empty = guarded  # type: ignore[assignment]
        program.run(image, programs, OutputFormat())
        torch.empty = empty
        found[name] = sum(int((guard != 77).sum()) for guard in guards)
        codes.add(program.names[-1])
    assert codes == set(CODES)
    return found


def noise() -> dict[str, Any]:
    """Return statistics of noise on images of one level, and whether it is the same in batches of other sizes."""
    flat = tuple(MemoryImage(str(number), np.full((32, 32, 3), 128, np.uint8)) for number in range(6))
    normal = {"op": "gaussian_noise", "std_range": [10, 10]}
    random = {"op": "erase", "fill": "noise", "area_range": [1, 1], "aspect_range": [1, 1]}
    plan = plan_of({"first": normal}, size=32)
    values = rendered(plan, flat, kernel_of) - 128.0
    holes = rendered(plan_of({"first": random}, size=32), flat, kernel_of)
    both = rendered(plan_of({"first": normal, "second": normal}, size=32), flat, kernel_of) - 128.0
    # All that should not depend on each other, as rows: samples with their channels, and what the second stage added.
    rows = np.concatenate([*values.transpose(0, 3, 1, 2).reshape(6, 3, -1), (both - values)[0].reshape(-1, 3).T])
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    train = plan_of({"resize": {}, "first": normal}, "train", 32)
    (first, again), (second, other) = (
        Program(train).values(Sampler(train, seed), SampleRange(epoch, 0, 2))[:, -2:].tolist()
        for seed, epoch in ((1, 0), (1, 1))
    )
    return {
        "normal": {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "tail": float((np.abs(values) > 20).mean()),
        },
        "uniform": np.histogram(holes, 8, (0, 256))[0].tolist(),
        "correlation": float(np.abs(correlations).max()),
        "batches": int(np.abs(values - (rendered(plan, flat, kernel_of, batch_size=4) - 128)).max()),
        "seeds": len({tuple(seed) for seed in (first, again, second, other)}),
    }


def mixed() -> dict[str, float]:
    """Return how far images and targets that the kernel mixes are from those that PyTorch's operators mix."""
    mix._BLOCK = 1024  # several for an image
    images = torch.rand(5, HEIGHT, WIDTH, 3).permute(0, 3, 1, 2)
    # Columns of tables, which are not contiguous.
    classes, labels = torch.tensor([[2, 0], [0, 0], [1, 0], [1, 0], [2, 0]])[:, 0], torch.rand(4, 5).T
    either = {"one_of": {"p": 0.8, "steps": {"mixup": {}, "cutmix": {}}}}
    found = {}
    both = {"cutmix": {"p": 0.6}, "mixup": {"p": 0.6}}
    for name, steps in some({"either": either, "both": both}, "either").items():
        for half, targets in ((False, classes), (False, labels), (True, classes)):
            batch = images.half() if half else images
            kind = LABELS if targets.is_floating_point() else CLASSES
            mixer = Mixer(plan_of(steps, "train", SIZE), kind, seed=SEED, rank=0, classes=3)
            results = []
            for by_kernel in (False, True):
                batch_assembly.mixing_kernel_runs = lambda device, by_kernel=by_kernel: by_kernel
                results.append([mixer.mix(batch, targets, epoch=2, start=start) for start in (0, 5)])
                assert results[-1][0][0].is_contiguous(memory_format=torch.channels_last)
                assert not torch.equal(results[-1][0][0], batch)
            for number, result in enumerate(("images", "targets")):
                apart = [(one[number] - other[number]).abs().max() for one, other in zip(*results, strict=True)]
                key = f"{name}, {result}{', half' if half and not number else ''}"
                found[key] = max(found.get(key, 0.0), *map(float, apart))
    return found


# The crops that the kernel knows; some windows are enlarged. No step increases what a crop rounds otherwise.
DIRECT: dict[str, dict[str, Any]] = {
    "random windows": {
        "train": {
            "random_resized_crop": {"area_range": [0.1, 1]},
            "flip": {"p": 0.5},
            "brightness": {"factor_range": [0.5, 1], "p": 0.5},
        },
        "views": {"count": 2},
    },
    "center": {"train": {"center_crop": {"scale": 0.7}, "posterize": {"p": 0.5}}},
    "whole": {"train": {"resize": {}, "solarize": {"p": 0.5}}},
    "short side": {"train": {"resize": {"side": "short"}}},
}


def direct() -> dict[str, dict[str, float]]:
    """Return the largest and the mean difference over calls, and how far the frames' windows are apart, in pixels."""
    kernels._BLOCK = 256
    pixels = np.stack([draw_photo(28, 20, seed) for seed in range(2)])
    return {name: directly(aug, pixels, RGB) for name, aug in some(DIRECT, "random windows", "short side").items()}


def directly(aug: dict[str, Any], pixels: Any, form: PixelFormat) -> dict[str, float]:
    """Return how far images of a pixel format that kernels transform are from what DALI makes of them."""
    transform.program_of = lambda *_: None
    recipe, apart, windows = load_recipe({"size": [17, 23], **aug}), [], []
    by_dali = transform.Transform(recipe, device="cpu", seed=SEED, frames=True, pixels=form)
    samplers = [Sampler(own, SEED, 0, number) for number, own in enumerate(by_dali.plan.per_view)]
    by_kernels = KernelTransform(by_dali.plan, CPU, OutputFormat(frames=True), samplers)
    for call in (0, 1, 2) if "views" in aug else (1,):  # the last two are drawn at once
        by_dali.position = call
        images = read_images(pixels, CPU, form)
        expected, of_dali = by_dali._run(images)
        views, shown = by_kernels.run(InputImages("gpu", torch.from_numpy(pixels)), call)
        levels = 255 * torch.tensor(by_dali.plan.std)[:, None, None]
        apart += [((one - other) * levels).abs() for one, other in zip(views, expected, strict=True)]
        windows += [(one - other).abs().max() for one, other in zip(shown, of_dali, strict=True)]
        assert all(view.is_contiguous(memory_format=torch.channels_last) for view in views)
    every = torch.cat(apart)
    return {"most": float(every.max()), "mean": float(every.mean()), "windows": float(max(windows))}


# Formats, each with the steps that it is tested with unless all are asked for.
FORMATS = [(1, "uint8", ("moved",)), (5, "int16", ("plain",)), (10, "uint16", ("mean", "mixed"))]


def channels() -> dict[str, Any]:
    """Return how far formats are from what DALI makes of them, with random windows, and statistics of their noise."""
    any_channels._TILE = 2048  # several tiles for each image, the last one not full
    rng, found = np.random.default_rng(0), {}
    for count, dtype, names in FORMATS:
        rgb = (4, 2, 0) if count > 4 else None
        form = PixelFormat.of(count, dtype, range=(1000, 50000) if dtype == "uint16" else None, rgb=rgb)
        low, high = DTYPES[dtype]
        pixels = low + rng.random((2, 20, 28, count)) * (high - low)
        stored = pixels.astype(dtype)
        normal = {"mean": [0.5] * count, "std": [0.5] * count}
        of_mean = {"contrast": {"pivot": "mean"}, "erase": {"p": 0.5, "fill": "mean"}}
        crop = DIRECT["random windows"]["train"]["random_resized_crop"]
        plain = {"rotate": {}, "contrast": {}, "channel_gain": {}, "erase": {}}
        moved = {"invert": {}, "rotate": {"border": "constant", "fill": 9, "angle_range": [-40, 40]}}
        mixed = {"mixed": {"saturation": {"factor_range": [0, 0.5]}, "rotate": {}}} if rgb else {}
        for name, steps in some({"plain": plain, "mean": of_mean, "moved": moved, **mixed}, *names).items():
            aug = {"train": {"random_resized_crop": crop, "flip": {"p": 0.5}, **steps}, **normal}
            found[f"{form}, {name}"] = directly(aug, stored, form)
    form = PixelFormat.of(4, "uint16")
    steps = {"gaussian_noise": {"std_range": [10, 10]}}
    recipe = load_recipe({"size": 32, "val": steps, "mean": [0] * 4, "std": [1] * 4})
    plan = build_plan(replace(recipe.aug, pixels=form), "val")
    program = Program(plan)
    levels = torch.full((6, 32, 32, 4), 127.5)
    programs = torch.from_numpy(program.values(Sampler(plan, SEED), SampleRange(0, 0, 6)))
    values = program.run(levels, programs, OutputFormat(raw=True)).numpy() - 127.5
    rows = values.transpose(0, 3, 1, 2).reshape(24, -1)
    noise = {"mean": float(values.mean()), "std": float(values.std())}
    return {"off": found, "noise": {**noise, "correlation": float(np.abs(np.corrcoef(rows) - np.eye(24)).max())}}


def policies() -> dict[str, Any]:
    """Return how far policies are from DALI's operators, and whether loaders resume and transforms agree."""
    tables = {"posterize": {"p": 0.3}, "equalize": {"p": 0.5}, "solarize": {"p": 0.5}, "autocontrast": {"p": 0.5}}
    colors = {"contrast": {"p": 0.5, "pivot": "mean"}, "sharpen": {"p": 0.5}, **tables}
    warps = {"rotate": {"p": 0.7, "angle_range": [-40, 40]}, "perspective": {"p": 0.3}}
    cases = {"auto_augment": {"auto_augment": {}}, "tables and the mean": colors}
    for border in ("constant", "reflect_101", "replicate"):
        moved = {name: {**step, "border": border} for name, step in warps.items()}
        cases[border] = {**moved, "brightness": {}, "posterize": {"p": 0.5}, "solarize": {"p": 0.2}}
    names = ("auto_augment", "tables and the mean", "reflect_101")
    found = {name: compare(steps) for name, steps in some(cases, *names).items()}
    return {**found, "resumed": resume(), "transformed": transformed()}


if __name__ == "__main__":
    # In this order, as some change the size of blocks.
    parts = (policies, noise, local, bounds, mixed, direct, channels)
    json.dump({part.__name__: part() for part in parts}, sys.stdout)
