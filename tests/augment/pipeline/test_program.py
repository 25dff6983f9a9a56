"""Programs: policies that one kernel runs on the GPU, in place of DALI's operators."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded import decoded
from fakes import needs_gpu, reject_waiting
from numpy.typing import NDArray
from photos import draw_photo
from pipelines import SEED, SIZE, plan_of, run
from rendering import chi_square

from augment import Transform, load_recipe
from augment.data.images import MemoryImage
from augment.params.pixel_format import DTYPES, PixelFormat
from augment.pipeline.graph import build
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.kernels.decoded_images import KernelTransform
from augment.pipeline.kernels.instructions import Program, kernels_run
from augment.pipeline.kernels.opcodes import standard_tables
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler, SampleRange

POLICIES = ["trivial_augment", "rand_augment", "auto_augment"]
# The local ops that the kernel knows, most of them but for noise, which it draws itself.
FILTERS: dict[str, Any] = {
    "gaussian_blur": {},
    "motion_blur": {},
    "sharpen": {},
    "jpeg": {},
    "nearest": {"op": "downscale"},
    "linear": {"op": "downscale", "interpolation": "linear"},
}
FILTERED: dict[str, Any] = {"one_of": {"p": 0.5, "steps": FILTERS}}
NOISE: dict[str, Any] = {"gaussian_noise": {"p": 0.5}, "erase": {"fill": "noise", "p": 0.5}}


@pytest.mark.parametrize(
    ("steps", "known"),
    [
        *(({policy: {}}, True) for policy in POLICIES),
        ({"flip": {}, "solarize": {}, "equalize": {"p": 0.1}}, True),
        ({"rotate": {}, "contrast": {}}, False),  # few operators, which DALI runs beside decoding
        ({"flip": {}, "rotate": {}, "hue": {}, "gaussian_blur": {"p": 0.5}}, False),
        ({**FILTERED, **NOISE}, True),
        ({"rand_augment": {}, "gaussian_noise": {}}, True),
        ({"rand_augment": {}, "gamma": {}}, False),
        ({"gamma": {}, "rand_augment": {}}, True),  # after DALI's gamma
        ({"rand_augment": {}, "rotate": {"border": "wrap"}}, False),
    ],
)
def test_programs_are_for_policies_that_the_kernel_knows(steps: dict[str, Any], known: bool) -> None:
    assert (Program.of(plan_of(steps, "train")) is not None) == known


def test_choices_without_a_kernel_run_before_the_others() -> None:
    """Of the choices of a `one_of` a sample meets one, so their order does not matter."""
    program = Program.of(build_plan(load_recipe("strong").aug, "train"))
    assert program is not None
    assert not program.before
    choices = {"one_of": {"steps": {"gaussian_blur": {}, "gamma": {}, "sharpen": {}}}, "erase": {}}
    program = Program(plan_of(choices))
    assert ([stage.steps[-1].op.name for stage in program.before], program.names) == (
        ["gamma"], ("gaussian_blur", "sharpen", "erase")
    )  # fmt: skip
    after_each_other = Program(plan_of({"gaussian_blur": {}, "gamma": {}, "erase": {}, "sharpen": {}}))
    assert after_each_other.names == ("erase", "sharpen")


def test_on_large_images_dali_runs_ops_of_many_taps() -> None:
    programs = [
        Program.of(plan_of(steps, size=size)) for steps in (FILTERED, {"rand_augment": {}}) for size in (256, 257)
    ]
    assert [program is not None for program in programs] == [True, False, True, True]


def test_quantization_is_that_of_the_jpeg_standard() -> None:
    luma, chroma = standard_tables()
    assert (luma[0].tolist(), luma.sum()) == ([16, 11, 10, 16, 24, 40, 51, 61], 3688)
    assert (chroma[0].tolist(), chroma.sum()) == ([17, 18, 24, 47, 99, 99, 99, 99], 5505)


@pytest.fixture(scope="module", params=["some", pytest.param("every", marks=pytest.mark.long)])
def interpreted(request: pytest.FixtureRequest) -> Any:
    """What one process finds in Triton's interpreter: to import all of it takes seconds."""
    pytest.importorskip("triton")
    script = Path(__file__).parents[2] / "support" / "interpreted.py"
    command = [sys.executable, str(script), *(["--every"] if request.param == "every" else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"every": request.param == "every"}


def test_the_kernel_matches_operators_in_an_interpreter(interpreted: Any) -> None:
    found = interpreted["policies"]
    assert found.pop("resumed")
    assert found.pop("transformed")
    for name, off in found.items():
        # A level that is rounded otherwise moves further when contrast is stretched.
        assert off["most"] <= 3, name
        assert off["mean"] < 0.02, name
        assert off["skipped"] == 0, name


def test_local_ops_of_the_kernel_match_operators_in_an_interpreter(interpreted: Any) -> None:
    found = interpreted["local"]
    for name, off in found["off"].items():
        assert off["most"] <= 1, name
        assert off["mean"] < 0.01, name
    for name, off in found["compression"].items():
        # A coefficient halfway between two steps may be rounded either way, which moves a whole block.
        assert off["mean"] < (0.3 if "gray" in name else 0.1), name
        assert off["beyond"] < 0.05, name


def test_no_op_of_the_kernel_writes_beyond_its_memory(interpreted: Any) -> None:
    assert not any(interpreted["bounds"].values())


def test_noise_of_the_kernel_in_an_interpreter(interpreted: Any) -> None:
    found = interpreted["noise"]
    # Of 6 x 32 x 32 x 3 numbers: normal, of standard deviation 10, rounded to whole levels; and uniform in eight bins.
    assert abs(found["normal"]["mean"]) < 0.3
    assert abs(found["normal"]["std"] - 10) < 0.2
    assert abs(found["normal"]["tail"] - 0.0404) < 0.006
    assert chi_square(found["uniform"], [1] * 8) > 0.001
    assert found["correlation"] < 0.15  # of samples, channels and stages
    assert found["batches"] == 0
    assert found["seeds"] == 4  # two samples of two epochs


def test_the_kernel_mixes_as_operators_do_in_an_interpreter(interpreted: Any) -> None:
    for name, off in interpreted["mixed"].items():
        assert off < (1e-3 if "half" in name else 1e-6), name


def test_kernels_alone_make_of_decoded_images_what_dali_does_in_an_interpreter(interpreted: Any) -> None:
    for name, off in interpreted["direct"].items():
        assert off["most"] < 1.1, name
        assert off["mean"] < 0.01, name
        assert off["windows"] < 1e-4, name


def test_kernels_for_any_channels_match_operators_in_an_interpreter(interpreted: Any) -> None:
    found = interpreted["channels"]
    assert len(found["off"]) == (11 if interpreted["every"] else 4)
    for name, off in found["off"].items():
        assert off["most"] < (2.1 if "uint8" in name else 0.01), name
        assert off["mean"] < 0.02, name
        assert off["windows"] < 1e-4, name
    noise = found["noise"]  # 6 x 32 x 32 x 4 normal numbers of standard deviation 10
    assert abs(noise["mean"]) < 0.3
    assert abs(noise["std"] - 10) < 0.2
    assert noise["correlation"] < 0.15  # of samples and channels


def test_the_seed_of_noise_depends_on_the_epoch_and_the_position_in_it() -> None:
    plan = build_plan(load_recipe("strong", "aug.train.erase.p=1").aug, "train")
    program, sampler = Program.of(plan), Sampler(plan, 3, rank=1)
    assert program is not None
    first, second = (program.values(sampler, SampleRange(epoch, 0, 40))[:, -2:] for epoch in (0, 1))
    np.testing.assert_array_equal(program.values(sampler, SampleRange(1, 13, 9))[:, -2:], second[13:22])
    assert len(np.unique(np.concatenate([first, second]), axis=0)) == 80


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_kernels_compile_for_a_gpu(every: bool) -> None:
    pytest.importorskip("triton")
    from compiled import compile_kernels

    compile_kernels(every)


@needs_gpu
@pytest.mark.parametrize("policy", POLICIES)
def test_the_kernel_matches_operators_on_the_gpu(
    policy: str, photos: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels_run()
    cuda, images = torch.device("cuda"), decoded(photos) * 20
    plan = plan_of({"flip": {"p": 0.5}, policy: {}})
    found, _ = run(plan, images, cuda)
    with reject_waiting():
        run_program(plan, torch.zeros(4, SIZE, SIZE, 3, dtype=torch.uint8, device=cuda))
    monkeypatch.setattr(build, "program_of", lambda plan, *_: None)
    expected, _ = run(plan, images, cuda)
    on_cpu, _ = run(plan, images, torch.device("cpu"))
    for other in (expected, on_cpu):
        off = np.abs(found.astype(int) - other)
        # One level more or less may cross a threshold of the next op.
        assert (off > 3).mean() < 1e-3
        assert off.mean() < 0.05
    assert np.abs(found.astype(int) - run(plan_of({}), images, cuda)[0]).mean() > 3


def run_program(plan: Plan, images: torch.Tensor) -> torch.Tensor:
    program = Program.of(plan)
    assert program is not None
    programs = torch.from_numpy(program.values(Sampler(plan, SEED), SampleRange(0, 0, len(images))))
    return program.run(images, programs.pin_memory().to(images.device, non_blocking=True), OutputFormat(half=True))


@needs_gpu
@pytest.mark.parametrize("recipe", [["imagenette"], ["rand_augment"], ["strong", "~aug.train.mixing"]])
def test_kernels_alone_make_of_decoded_images_what_dali_does_on_the_gpu(recipe: list[str]) -> None:
    cuda, made = torch.device("cuda"), load_recipe(*recipe, "aug.views.count=2")
    by_kernels, by_dali = (Transform(made, device=cuda, seed=SEED, threads=2) for _ in range(2))
    assert KernelTransform.supports(by_kernels.plan, Placement().on(cuda, 2))
    images = torch.from_numpy(np.stack([draw_photo(190, 160, seed) for seed in range(24)])).to(cuda)
    levels = 255 * torch.tensor(by_dali.plan.std, device=cuda)[:, None, None]
    for call in range(4):
        with reject_waiting() if call else nullcontext():
            views = by_kernels(images)
        for found, expected in zip(views, by_dali(list(images)), strict=True):
            off = ((found - expected) * levels).abs()
            # One level more or less may cross a threshold of the next op, or be stretched.
            assert (off > 3.5).float().mean() < 5e-3
            assert off.mean() < 0.3
    by_kernels.position = 1
    assert all(not torch.equal(*pair) for pair in zip(by_kernels(images), views, strict=True))


@needs_gpu
@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (4, "float32"), (10, "uint16"), (10, "uint8")])
def test_kernels_for_any_channels_match_dali_on_the_gpu(channels: int, dtype: str) -> None:
    cuda, form = torch.device("cuda"), PixelFormat.of(channels, dtype, rgb=(3, 0, 2) if channels > 3 else None)
    steps = ["random_resized_crop", "flip", "rotate", "contrast", "channel_gain"]
    steps += ["saturation"] if channels > 3 else []
    numbers = [0.5] * channels
    aug = {"size": 128, "mean": numbers, "std": numbers, "train": {step: {} for step in steps}}
    recipe = load_recipe({**aug, "views": {"count": 2}})
    by_kernels, by_dali = (Transform(recipe, device=cuda, seed=SEED, threads=2, pixels=form) for _ in range(2))
    assert KernelTransform.supports(by_kernels.plan, Placement().on(cuda, 2))
    low, high = DTYPES[dtype]
    stored = low + np.random.default_rng(0).random((24, 160, 190, channels)) * (high - low)
    images = torch.from_numpy(stored.astype(dtype)).to(cuda)
    for call in range(4):
        with reject_waiting() if call else nullcontext():
            views = by_kernels(images)
        for found, expected in zip(views, by_dali(list(images)), strict=True):
            off = ((found - expected) * 127.5).abs()
            assert off.max() < (3.1 if dtype == "uint8" else 0.05)
            assert off.mean() < (0.05 if dtype == "uint8" else 0.002)


LARGE = 128  # px, with 256 samples: as many as training has


def detailed(seed: int) -> NDArray[np.uint8]:
    """Draw a photo with fine texture, which blur and compression change much."""
    texture = np.random.default_rng(seed).integers(-25, 26, (LARGE, LARGE, 3))
    return np.clip(draw_photo(LARGE, LARGE, seed) + texture, 0, 255).astype(np.uint8)


@needs_gpu
@pytest.mark.parametrize("name", [*FILTERS, "hole", "all"])
def test_local_ops_of_the_kernel_match_operators_on_the_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_run(every_op=True)
    cuda = torch.device("cuda")
    images = tuple(MemoryImage(str(seed), detailed(seed)) for seed in range(32)) * 8
    hole = {"erase": {"p": 0.5, "fill": "mean"}}
    if name == "all":
        jitter = {"flip": {"p": 0.5}, "affine": {"p": 0.5}, "color_jitter": {"p": 0.5, "order": "random"}}
        plan = plan_of({**jitter, "one_of": {"p": 0.8, "steps": FILTERS}, **hole}, size=LARGE)
    else:
        plan = plan_of(hole if name == "hole" else {name: FILTERS[name] | {"p": 0.8}}, size=LARGE)
    monkeypatch.setattr(build, "program_of", lambda plan, *_: Program(plan))
    found, _ = run(plan, images, cuda)
    monkeypatch.setattr(build, "program_of", lambda plan, *_: None)
    off = np.abs(found.astype(int) - run(plan, images, cuda)[0])
    # A coefficient of a JPEG that lies halfway between two steps may be rounded either way, which moves a whole block.
    if name == "all":  # whose JPEGs are of images that differ by a level here and there
        assert (off > 3).mean() < 5e-3
    else:
        assert (off > 1).mean() < (0.06 if name == "jpeg" else 1e-4)
    assert off.mean() < 0.3
    assert np.abs(found.astype(int) - run(plan_of({}, size=LARGE), images, cuda)[0]).mean() > 1


@needs_gpu
def test_noise_of_the_kernel_on_the_gpu() -> None:
    cuda, count = torch.device("cuda"), 16
    images = tuple(MemoryImage(str(number), np.full((LARGE, LARGE, 3), 128, np.uint8)) for number in range(count))
    plan = plan_of({"gaussian_noise": {"std_range": [10, 10]}, "erase": {"fill": "noise", "p": 0.5}}, size=LARGE)
    noise, others = (run(plan, images, cuda, batch_size=size)[0].astype(int) for size in (count, 5))
    np.testing.assert_array_equal(noise, others)
    erased = Sampler(plan, SEED).draw(0, 0, count)["erase"]["applied"]
    assert 0 < erased.sum() < count
    assert abs(noise[~erased].mean() - 128) < 0.1
    assert abs(noise[~erased].std() - 10) < 0.1
    assert noise[erased].std() > 15
    correlations = np.corrcoef(noise.transpose(0, 3, 1, 2).reshape(3 * count, -1)) - np.eye(3 * count)
    assert np.abs(correlations).max() < 0.05
    with reject_waiting():
        run_program(plan, torch.zeros(4, LARGE, LARGE, 3, dtype=torch.uint8, device=cuda))
