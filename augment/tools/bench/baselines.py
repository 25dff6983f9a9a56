"""The recipe as written for PyTorch's DataLoader: image by image, op by op, in worker processes.

Rules of a fair comparison:

- Ops that a library has are the library's own: flip, rotate, affine, brightness, contrast, saturation, and
  torchvision's hue, with the library's black border and its own definitions of contrast (about the image's mean gray)
  and hue. Any other matrix op is one PERSPECTIVE transform or one color matrix in PIL, and one `F.perspective` or one
  matrix product in torchvision. Nothing is fused.
- PIL decodes the whole image, without draft mode, which would decode a smaller one. The window is cut and resized in
  one call if the library has one (PIL's `resize(box=)`), bilinearly with antialiasing as in DALI.
- Parameters come from a NumPy generator in the worker, the window from Szegedy's method with ten attempts.
- Workers persist across epochs and run one PyTorch thread each; memory is pinned if there is a GPU.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from augment.data.dataset import ImageRef
from augment.data.images import is_decoded, open_image
from augment.params import Range
from augment.recipe.plan import build_plan
from augment.recipe.stage import Stage, step_matrix
from augment.recipe.steps import Aug, Step, parse_steps, plain_steps
from augment.support.own_code import load_plugins
from augment.tools.bench.setup import Setup

try:
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F
except ImportError:
    HAS_TORCHVISION = False
else:
    HAS_TORCHVISION = True

Drawn = Mapping[str, float]
Window = tuple[float, float, float, float]  # left, top, right, bottom

_ATTEMPTS = 10
_CROPS = ("resize", "random_resized_crop", "center_crop")
_MATRICES = ("geometry", "color")


@dataclass(frozen=True)
class PlainRecipe:
    """A recipe as plain values, which can be sent to worker processes.

    Attributes:
        steps: steps as returned by `augment.recipe.steps.plain_steps`, the crop first.
        size: side of the square in pixels.
        mean: mean of RGB in 0..1.
        std: standard deviation of RGB in 0..1.
        plugins: modules that declare ops.
    """

    steps: Mapping[str, Mapping[str, Any]]
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    plugins: tuple[str, ...]

    @staticmethod
    def of(aug: Aug) -> "PlainRecipe":
        """Return the recipe of the train split, without steps with p = 0."""
        plan = build_plan(aug, "train")
        steps = plain_steps((plan.crop, *plan.tree))
        return PlainRecipe(steps, plan.size, plan.mean, plan.std, aug.plugins)


def torchvision_obstacle(setup: Setup) -> str:
    """Return the reason why the recipe cannot run in torchvision, "" if it can."""
    return obstacle(setup) if HAS_TORCHVISION else "torchvision is not installed"


def obstacle(setup: Setup) -> str:
    """Return the reason why the recipe cannot be written for a DataLoader, "" if it can."""
    plan = setup.plan
    if len(plan.per_view) > 1:
        return "several views of each image"
    unknown = [step.key for step in plan.tree if step.op.kind not in _MATRICES or _uses_mean(step)]
    if plan.crop.op.name not in _CROPS or plan.crop.params.get("side", "both") != "both":
        unknown.insert(0, plan.crop.key)
    return f"no translation of {', '.join(unknown)}" if unknown else ""


def _uses_mean(step: Step) -> bool:
    """Return whether a step needs the image's mean, for which the libraries' own contrast is the only translation."""
    is_color = step.op.kind == "color" and step.op.name != "contrast"
    return is_color and Stage("color", ((step,),)).uses_mean


def window(step: Step, width: int, height: int, rng: np.random.Generator) -> Window:
    """Return the window of a crop op, in pixels: left, top, right, bottom."""
    if step.op.name == "center_crop":
        side = step.params["scale"] * min(width, height)
        return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2
    if step.op.name == "resize" and step.params["side"] == "both":
        return 0, 0, width, height
    low, high = (math.log(a) for a in step.params["aspect_range"])
    for _ in range(_ATTEMPTS):
        area = width * height * rng.uniform(*step.params["area_range"])
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def draw(step: Step, rng: np.random.Generator) -> Drawn:
    """Draw a step's values for one sample."""
    values = {value: rng.random() for value in step.op.uniforms}
    for value, name in step.op.draws.items():
        param = step.op.params[name]
        assert isinstance(param, Range)
        values[value] = float(param.draw(step.params[name], np.array(rng.random())))
    return values


# --- ops that a library lacks, as matrices ---


def _matrix(step: Step, values: Drawn, size: int) -> NDArray[np.float64]:
    """Return the op's matrix, (3, 3) or (3, 4), for one sample."""
    drawn = {name: np.array([value]) for name, value in values.items()}
    return step_matrix(step, {**drawn, "applied": np.array([True])}, size)[0, :3]


def _coefficients(step: Step, values: Drawn, size: int) -> list[float]:
    """Return the eight coefficients, destination to source, that PIL and torchvision take.

    In both, the origin is the top left corner and pixel centers are at half-integers.
    """
    there = np.array([[1, 0, size / 2], [0, 1, size / 2], [0, 0, 1]])
    matrix = there @ np.linalg.inv(_matrix(step, values, size)) @ np.linalg.inv(there)
    return [float(entry) for entry in (matrix / matrix[2, 2]).ravel()[:8]]


# --- PIL ---


# PIL has no affine and no hue; these use matrices.
PIL_OPS: dict[str, Callable[..., Image.Image]] = {
    "flip": lambda image, direction: ImageOps.mirror(image) if direction == "horizontal" else ImageOps.flip(image),
    "rotate": lambda image, angle: image.rotate(angle, Image.Resampling.BILINEAR),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "contrast": lambda image, factor, pivot: ImageEnhance.Contrast(image).enhance(factor),
    "saturation": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
}


def apply_pil(image: Image.Image, step: Step, values: Drawn) -> Image.Image:
    """Apply a step to an RGB image."""
    if step.op.name in PIL_OPS:
        return PIL_OPS[step.op.name](image, **step.op.values(step.params, dict(values)))
    if step.op.kind == "geometry":
        coefficients = _coefficients(step, values, image.width)
        return image.transform(image.size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
    red, green, blue = _matrix(step, values, image.width)
    return image.convert("RGB", (*red, *green, *blue))


# --- torchvision ---


def _tv_affine(
    image: Tensor, translate_x: float, translate_y: float, scale: float, shear_x: float, shear_y: float
) -> Tensor:
    size = image.shape[-1]
    moved: Tensor = F.affine(
        image,
        angle=0,
        translate=[translate_x * size, translate_y * size],
        scale=scale,
        shear=[-shear_x, -shear_y],
        interpolation=InterpolationMode.BILINEAR,
    )
    return moved


TORCHVISION_OPS: dict[str, Callable[..., Any]] = {
    "flip": lambda image, direction: (F.horizontal_flip if direction == "horizontal" else F.vertical_flip)(image),
    "rotate": lambda image, angle: F.rotate(image, angle, InterpolationMode.BILINEAR),
    "affine": _tv_affine,
    "brightness": lambda image, factor: F.adjust_brightness(image, factor),
    "contrast": lambda image, factor, pivot: F.adjust_contrast(image, factor),
    "saturation": lambda image, factor: F.adjust_saturation(image, factor),
    "hue": lambda image, angle: F.adjust_hue(image, angle / 360),  # -180..180 degrees are -0.5..0.5
}


def apply_torchvision(image: Tensor, step: Step, values: Drawn) -> Tensor:
    """Apply a step to an image, (3, size, size) uint8, or with one set of values to a batch of them."""
    if step.op.name in TORCHVISION_OPS:
        arguments = step.op.values(step.params, dict(values))
        changed: Tensor = TORCHVISION_OPS[step.op.name](image, **arguments)
        return changed
    size = image.shape[-1]
    if step.op.kind == "geometry":
        warped: Tensor = F.perspective(
            image, None, None, InterpolationMode.BILINEAR, coefficients=_coefficients(step, values, size)
        )
        return warped
    matrix = torch.from_numpy(_matrix(step, values, size)).float().to(image.device)
    colored = torch.einsum("ij,...jhw->...ihw", matrix[:, :3], image.float()) + matrix[:, 3, None, None]
    return colored.round_().clamp_(0, 255).byte()


# --- data sets ---


class _Baseline(Dataset[tuple[Tensor, int]], ABC):
    """A data set of normalized images, (3, size, size), and their indices."""

    def __init__(self, files: Sequence[ImageRef], recipe: PlainRecipe, device: torch.device | None = None) -> None:
        self._files = tuple(files)
        self._recipe = recipe
        values = (recipe.mean, recipe.std)
        self._mean, self._std = (torch.tensor(v, device=device)[:, None, None] * 255 for v in values)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._normalized(self.pixels(self._files[index], self._rng)), index

    @cached_property
    def _rng(self) -> np.random.Generator:
        """The generator of this worker."""
        info = torch.utils.data.get_worker_info()
        return np.random.default_rng(info.id if info else 0)

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        """The typed steps, the crop first; each worker parses its own."""
        load_plugins(self._recipe.plugins, "aug.plugins")
        return parse_steps(self._recipe.steps, "aug.train")

    def _normalized(self, image: Tensor) -> Tensor:
        return image.float().sub_(self._mean).div_(self._std)

    def _drawn(self, rng: np.random.Generator) -> Iterator[tuple[Step, Drawn]]:
        for step in self._steps[1:]:
            if step.p == 1 or rng.random() < step.p:
                yield step, draw(step, rng)

    @abstractmethod
    def pixels(self, file: ImageRef, rng: np.random.Generator) -> Tensor:
        """Return the image before normalization, (3, size, size) uint8."""


class PilDataset(_Baseline):
    """A data set that decodes and transforms with PIL, then converts and normalizes with PyTorch."""

    def pixels(self, file: ImageRef, rng: np.random.Generator) -> Tensor:
        """Return the image before normalization, (3, size, size) uint8."""
        with open_image(file) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
        box = window(self._steps[0], image.width, image.height, rng)
        image = image.resize((self._recipe.size, self._recipe.size), Image.Resampling.BILINEAR, box=box)
        for step, values in self._drawn(rng):
            image = apply_pil(image, step, values)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _decode(file: ImageRef) -> Tensor:
    if is_decoded(file):
        return torch.from_numpy(np.array(file.read_pixels())).permute(2, 0, 1)
    encoded = str(file) if isinstance(file, Path) else torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    decoded: Tensor = decode_image(encoded, ImageReadMode.RGB, apply_exif_orientation=True)
    return decoded


class TorchvisionDataset(_Baseline):
    """A data set that decodes with torchvision.io and transforms tensors with torchvision v2."""

    def pixels(self, file: ImageRef, rng: np.random.Generator) -> Tensor:
        """Return the image before normalization, (3, size, size) uint8."""
        with warnings.catch_warnings():
            # torchvision 0.29 recommends another package, which is not widely installed yet.
            warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)
            return self._changed(_decode(file), rng)

    def transform(self, images: Tensor) -> Tensor:
        """Return an image that is decoded, (3, height, width) uint8, or a batch with one set of draws, normalized."""
        return self._normalized(self._changed(images, self._rng))

    def _changed(self, image: Tensor, rng: np.random.Generator) -> Tensor:
        left, top, right, bottom = (round(v) for v in window(self._steps[0], image.shape[-1], image.shape[-2], rng))
        size = [self._recipe.size] * 2
        image = F.resized_crop(image, top, left, bottom - top, right - left, size, antialias=True)
        for step, values in self._drawn(rng):
            image = apply_torchvision(image, step, values)
        return torch.as_tensor(image)


def data_loader(
    dataset: _Baseline, *, batch_size: int, workers: int, pin_memory: bool
) -> DataLoader[tuple[Tensor, int]]:
    """Return a shuffling DataLoader with persistent workers.

    Workers are forked from a process that has imported only this module, as DALI does not survive a fork.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=True,
        multiprocessing_context=context,
    )
