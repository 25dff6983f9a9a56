"""Exported transforms, compared with the validation loader."""

import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import build_loader
from numpy.typing import NDArray
from nvidia.dali.pipeline import Pipeline
from photos import draw_photo
from PIL import Image

from augment.data.dataset import Split
from augment.data.images import to_rgb
from augment.pipeline.serving.torch_crops import Crop
from augment.pipeline.serving.transform_source import python_source, serialize
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import SplitName, parse_aug
from augment.support.errors import UserError
from augment.tools.export import export

SIZE = 32
CPU = torch.device("cpu")
STEPS: dict[str, dict[str, Any]] = {
    "none": {},
    "resize": {"resize": None},
    "center_crop": {"center_crop": {"scale": 0.9}},
    "whole center_crop": {"center_crop": None},
    "short": {"resize": {"side": "short"}},
    "long": {"resize": {"side": "long"}},
    "gray letterbox": {"letterbox": {"fill": 99}},
}
WIDE = (24, 40)

# Where a value lies halfway between two levels, DALI's arithmetic may round it to the other one: in .05% of values.
# A little more for CMYK, whose conversion to RGB is another one, too: 2 levels.
LEVELS, CMYK_LEVELS = 1.01, 2.01


def plan_of(steps: Mapping[str, Any] | None = None, split: SplitName = "val", size: Any = SIZE, **aug: object) -> Plan:
    return build_plan(parse_aug({"size": size, split: steps, **aug}), split)


def validate(plan: Plan, files: Sequence[Path], device: torch.device = CPU) -> NDArray[np.float32]:
    loader = build_loader(plan, Split(tuple(files), (0,) * len(files)), batch_size=4, seed=3, device=device)
    return np.concatenate([batch.images.cpu().numpy() for batch in loader])


def levels(difference: NDArray[np.float32], plan: Plan) -> NDArray[np.float32]:
    """Turn differences of normalized images, (..., 3, height, width), into levels of 0..255."""
    return np.abs(difference) * 255 * np.array(plan.std, np.float32)[:, None, None]


def transform(plan: Plan, folder: Path, files: Sequence[Path]) -> NDArray[np.float32]:
    """Write transform.py and apply it in this process."""
    (folder / "transform.py").write_text(python_source(plan))
    function, made = runpy.run_path(str(folder / "transform.py"))["transform"], []
    for file in files:
        with Image.open(file) as image:
            made.append(function(image))
    return np.stack(made)


def module(plan: Plan, files: Sequence[Path]) -> NDArray[np.float32]:
    """Apply the PyTorch module, image by image."""
    crop, made = Crop(plan), []
    for file in files:
        with Image.open(file) as image:
            made.append(crop(torch.from_numpy(np.array(to_rgb(image)))[None]).numpy())
    return np.concatenate(made)


def save(folder: Path, name: str, image: Image.Image, **options: Any) -> Path:
    image.save(folder / name, **options)
    return folder / name


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Draw an image whose outermost rows differ from those inside: noise on a smooth photo."""
    noise = np.random.default_rng(seed).integers(-60, 60, (height, width, 3))
    return Image.fromarray((draw_photo(width, height, seed) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """PNGs that are larger than the transform's size in one direction, both or none."""
    folder = tmp_path_factory.mktemp("noisy")
    return [save(folder, f"{w}.png", photo(w, h, w)) for w, h in ((120, 90), (47, 101), (20, 30), (333, 16), (32, 32))]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_the_serialized_pipeline_matches_validation(
    steps: dict[str, Any], image_files: Split, tmp_path: Path, device: torch.device
) -> None:
    plan, kind = plan_of(steps, size=WIDE), "gpu" if device.type == "cuda" else "cpu"
    (tmp_path / "it.dali").write_bytes(serialize(plan, kind))  # type: ignore[arg-type]
    # As in Triton, in DALI's simplest executor, where nothing is copied from the GPU to the CPU.
    where = {"device_id": 0} if kind == "gpu" else {}
    pipeline = Pipeline.deserialize(filename=str(tmp_path / "it.dali"), batch_size=4, prefetch_queue_depth=1, **where)
    found = []
    for files in (image_files.files[:4], image_files.files[4:]):
        (output,) = pipeline.run(encoded=[np.frombuffer(file.read_bytes(), np.uint8) for file in files])
        found.append(np.array(output.as_cpu().as_tensor(), np.float32))
    theirs = np.concatenate(found)
    np.testing.assert_array_equal(theirs, validate(plan, image_files.files, device))
    assert [file.name for file in tmp_path.iterdir()] == ["it.dali"]


_LOAD = """
import sys
import numpy as np
from nvidia.dali.pipeline import Pipeline
pipeline = Pipeline.deserialize(filename=sys.argv[1])
(images,) = pipeline.run(encoded=[np.fromfile(file, np.uint8) for file in sys.argv[3:]])
np.save(sys.argv[2], np.asarray(images.as_tensor()))
assert not any(name.split(".")[0] in ("augment", "trainer", "torch") for name in sys.modules)
"""

_APPLY = """
import importlib.util, sys
import numpy as np
from PIL import Image
spec = importlib.util.spec_from_file_location("transform", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
np.save(sys.argv[2], np.stack([module.transform(Image.open(file)) for file in sys.argv[3:]]))
foreign = ("augment", "trainer", "torch", "torchvision", "nvidia")
assert not any(name.split(".")[0] in foreign for name in sys.modules)
"""


def isolated(script: str, transform: Path, files: Sequence[Path]) -> NDArray[np.float32]:
    """Run a script without this project's folder, user site and environment variables."""
    out = transform.with_name("out.npy")
    arguments = [str(path) for path in (transform, out, *files)]
    subprocess.run([sys.executable, "-I", "-c", script, *arguments], cwd=transform.parent, check=True, timeout=60)
    loaded: NDArray[np.float32] = np.load(out)
    return loaded


def test_the_serialized_pipeline_needs_dali_only(image_files: Split, tmp_path: Path) -> None:
    plan = plan_of(STEPS["center_crop"])
    (tmp_path / "it.dali").write_bytes(serialize(plan, "cpu"))
    theirs = isolated(_LOAD, tmp_path / "it.dali", image_files.files)
    np.testing.assert_array_equal(theirs, validate(plan, image_files.files))


def test_the_python_file_needs_pillow_and_numpy_only(noisy: list[Path], tmp_path: Path) -> None:
    plan = plan_of(STEPS["center_crop"])
    (tmp_path / "transform.py").write_text(python_source(plan))
    theirs = isolated(_APPLY, tmp_path / "transform.py", noisy)
    assert theirs.dtype == np.float32
    assert theirs.shape == (len(noisy), 3, SIZE, SIZE)
    assert levels(theirs - validate(plan, noisy), plan).max() <= LEVELS


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_the_python_file_and_the_module_match_validation_but_for_ties(
    steps: dict[str, Any], noisy: list[Path], image_files: Split, tmp_path: Path
) -> None:
    # Including the edges, where Pillow's own resize is far off. Pillow and DALI's CPU decoder decode JPEG alike.
    for files in (noisy, image_files.files):
        plan = plan_of(steps, size=WIDE, mean=[0.1, 0.5, 0.7], std=[0.1, 0.3, 1])
        expected = validate(plan, files)
        for form in (transform(plan, tmp_path, files), module(plan, files)):
            difference = levels(form - expected, plan)
            assert difference.max() <= LEVELS
            assert difference.mean() < 0.02


def _palette() -> Image.Image:
    image = photo(50, 40).quantize(16)
    image.info["transparency"] = bytes(range(0, 256, 16))
    return image


def _gray16() -> Image.Image:
    ramp = np.linspace(0, 65535, 50 * 40).reshape(40, 50)
    return Image.fromarray(ramp.astype(np.uint16))


MODES = {
    "gray.jpg": lambda: photo(50, 40).convert("L"),
    "gray.png": lambda: photo(50, 40).convert("L"),
    "gray-alpha.png": lambda: photo(50, 40).convert("LA"),
    "alpha.png": lambda: Image.merge("RGBA", (*photo(50, 40).split(), photo(50, 40, 1).convert("L"))),
    "palette.png": _palette,
    "gray16.png": _gray16,
    "bilevel.png": lambda: photo(50, 40).convert("1"),
    "1x1.png": lambda: photo(1, 1),
    "1x1.jpg": lambda: photo(1, 1),
    "3000x2.png": lambda: photo(3000, 2),
    "cmyk.jpg": lambda: photo(50, 40).convert("CMYK"),
}


@pytest.mark.parametrize("name", MODES)
def test_the_python_file_takes_every_kind_of_image(name: str, tmp_path: Path) -> None:
    file, plan = save(tmp_path, name, MODES[name]()), plan_of(STEPS["center_crop"])
    tolerance = CMYK_LEVELS if name == "cmyk.jpg" else LEVELS
    assert levels(transform(plan, tmp_path, [file]) - validate(plan, [file]), plan).max() <= tolerance


def test_the_plan_in_the_python_file_is_a_comment(tmp_path: Path) -> None:
    key = 'it"""\0\nraise SystemExit'
    plan = plan_of({key: {"op": "center_crop"}})
    (tmp_path / "transform.py").write_text(python_source(plan))
    assert callable(runpy.run_path(str(tmp_path / "transform.py"))["transform"])


@pytest.mark.parametrize("write", [python_source, lambda plan: serialize(plan, "cpu")])
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"flip": {"p": 0.5}}, r"aug\.val\.flip is random"),
        ({"window": {"op": "random_resized_crop"}}, r"aug\.val\.window is random"),
        ({"rotate": {"angle_range": {"values": [0, 5]}}}, r"aug\.val\.rotate is random"),
        ({"any": {"op": "one_of", "steps": {"flip": None, "rot90": None}}}, r"aug\.val\.any\.flip is random"),
        ({"shot_noise": {"factor_range": [1, 1]}}, r"aug\.val\.shot_noise is random"),
        ({"letterbox": {"border": "replicate"}}, r"aug\.val\.letterbox\.border=replicate needs DALI"),
        ({"hue": {"p": 0.1}, "flip": None}, r"aug\.val\.hue is random; aug\.val\.flip is not a crop"),
    ],
)
def test_other_steps_are_rejected_by_their_key(write: Any, steps: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        write(plan_of(steps))
    assert "Allowed in aug.val: resize, center_crop" in str(raised.value)


def test_all_is_exported(tmp_path: Path) -> None:
    export(plan_of(STEPS["center_crop"]), tmp_path / "a" / "b")
    names = sorted(file.name for file in (tmp_path / "a/b").iterdir())
    assert names == ["transform.py", "transform_cpu.dali", "transform_gpu.dali"]
