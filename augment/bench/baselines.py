"""The recipe as users of PyTorch's DataLoader write it: picture by picture, op by op, in worker processes.

What was decided, so that the comparison is fair:

- An op that the library has is the library's own: flip, rotate, affine, brightness, contrast, saturation, and
  torchvision's hue; with the library's border, which is black, and its own reading of contrast (about the picture's
  mean gray) and hue. Any other op of matrices is one PERSPECTIVE transform or one color matrix in PIL, and one
  `F.perspective` or one matrix product in torchvision. Nothing is fused.
- PIL decodes the whole picture: its draft mode, which would decode a smaller one, is off. The window is cut and
  resized in one call where the library has one (PIL's `resize(box=)`), antialiased and bilinear as in DALI.
- Parameters come from a NumPy generator in the worker, the window from Szegedy's method with ten attempts.
- Workers persist over the epochs and run one PyTorch thread each; where there is a GPU, memory is pinned.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from augment.config import IMAGENET_MEAN, IMAGENET_STD, Aug, Step, parse_steps, plain_steps
from augment.dataset import Picture
from augment.params import Range
from augment.plan import build_plan
from augment.registry import load_plugins
from augment.stored import is_raw, open_picture

try:
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F
except ImportError:
    HAS_TORCHVISION = False
else:
    HAS_TORCHVISION = True

Values = Mapping[str, float]
Window = tuple[float, float, float, float]  # left, top, right, bottom

_ATTEMPTS = 10
_CROPS = ("resize", "random_resized_crop", "center_crop")
_MATRICES = ("geometry", "color")


@dataclass(frozen=True)
class Recipe:
    """A recipe as plain values, which can be sent to worker processes.

    Attributes:
        steps: as `augment.config.plain_steps` has them, the crop first.
        size: side of the square in pixels.
        mean: subtracted, in 0..1.
        std: divided by, in 0..1.
        plugins: modules that declare ops.
        half: float16 in place of float32.
    """

    steps: Mapping[str, Mapping[str, Any]]
    size: int
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    plugins: tuple[str, ...] = ()
    half: bool = False

    @staticmethod
    def of(aug: Aug, *, half: bool = False) -> "Recipe":
        """Return the train recipe, without the steps of p = 0."""
        plan = build_plan(aug, "train")
        steps = plain_steps((plan.crop, *plan.tree))
        return Recipe(steps, plan.size, plan.mean, plan.std, aug.plugins, half)

    def parse(self) -> tuple[Step, ...]:
        """Return the steps, typed, the crop first."""
        load_plugins(self.plugins, "aug.plugins")
        return parse_steps(self.steps, "aug.train")


def obstacle(aug: Aug) -> str:
    """Return the reason why the recipe cannot be written for a DataLoader, "" if it can."""
    plan = build_plan(aug, "train")
    unknown = [step.key for step in plan.tree if step.op.kind not in _MATRICES]
    if plan.crop.op.name not in _CROPS or plan.crop.params.get("side", "both") != "both":
        unknown.insert(0, plan.crop.key)
    return f"no translation of {', '.join(unknown)}" if unknown else ""


def window(step: Step, width: int, height: int, rng: np.random.Generator) -> Window:
    """Return the part of a picture that a crop op takes, in pixels."""
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


def draw(step: Step, rng: np.random.Generator) -> Values:
    """Draw the values of one sample."""
    values = {value: rng.random() for value in step.op.uniforms}
    for value, name in step.op.draws.items():
        param = step.op.params[name]
        assert isinstance(param, Range)
        values[value] = float(param.draw(step.params[name], np.array(rng.random())))
    return values


# --- matrices of ops that a library lacks ---


def _matrix(step: Step, values: Values, size: int) -> NDArray[np.float64]:
    """Return the op's matrix, (3, 3) or (3, 4), for one sample."""
    arguments = step.op.values(step.params, {n: np.array([v]) for n, v in values.items()})
    if step.op.kind == "geometry":
        arguments["size"] = size
    matrix = np.asarray(step.op.function(**arguments))
    return matrix[0] if matrix.ndim == 3 else matrix


def _coefficients(step: Step, values: Values, size: int) -> list[float]:
    """Return the eight numbers, destination to source, that PIL and torchvision take.

    Both put the origin in the top left corner and pixel centers at halves.
    """
    there = np.array([[1, 0, size / 2], [0, 1, size / 2], [0, 0, 1]])
    matrix = there @ np.linalg.inv(_matrix(step, values, size)) @ np.linalg.inv(there)
    return [float(entry) for entry in (matrix / matrix[2, 2]).ravel()[:8]]


# --- PIL ---


# PIL has no affine and no hue of its own: they go by their matrices.
PIL_OPS: dict[str, Callable[..., Image.Image]] = {
    "flip": lambda image, direction: ImageOps.mirror(image) if direction == "horizontal" else ImageOps.flip(image),
    "rotate": lambda image, angle: image.rotate(angle, Image.Resampling.BILINEAR),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "contrast": lambda image, factor, pivot: ImageEnhance.Contrast(image).enhance(factor),
    "saturation": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
}


def apply_pil(image: Image.Image, step: Step, values: Values) -> Image.Image:
    """Apply one step to an RGB picture."""
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


def apply_torchvision(image: Tensor, step: Step, values: Values) -> Tensor:
    """Apply one step to a picture, (3, size, size) uint8."""
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
    matrix = torch.from_numpy(_matrix(step, values, size)).float()
    colored = torch.einsum("ij,jhw->ihw", matrix[:, :3], image.float()) + matrix[:, 3, None, None]
    return colored.round_().clamp_(0, 255).byte()


# --- data sets ---


class _Baseline(Dataset[tuple[Tensor, int]]):
    """An item is the picture, (3, size, size) normalized, and its index."""

    def __init__(self, files: Sequence[Picture], recipe: Recipe, seed: int = 0) -> None:
        self._files = tuple(files)
        self._recipe = recipe
        self._seed = seed
        self._mean, self._std = (torch.tensor(v)[:, None, None] * 255 for v in (recipe.mean, recipe.std))
        self._rng: np.random.Generator | None = None  # each worker makes its own
        self._steps: tuple[Step, ...] = ()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._rng is None:
            info = torch.utils.data.get_worker_info()
            self._rng = np.random.default_rng((self._seed, info.id if info else 0))
            self._steps = self._recipe.parse()
        normalized = self._picture(self._files[index], self._rng).float().sub_(self._mean).div_(self._std)
        return normalized.half() if self._recipe.half else normalized, index

    def _drawn(self, rng: np.random.Generator) -> Iterator[tuple[Step, Values]]:
        for step in self._steps[1:]:
            if step.p == 1 or rng.random() < step.p:
                yield step, draw(step, rng)

    def _picture(self, file: Picture, rng: np.random.Generator) -> Tensor:
        """Return the picture before normalization, (3, size, size) uint8."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_rng": None, "_steps": ()}


class PilDataset(_Baseline):
    """Decodes and transforms with PIL, converts and normalizes with PyTorch."""

    def pixels(self, file: Picture, rng: np.random.Generator) -> Image.Image:
        """Return the picture before normalization."""
        with open_picture(file) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
        box = window(self._steps[0], image.width, image.height, rng)
        image = image.resize((self._recipe.size, self._recipe.size), Image.Resampling.BILINEAR, box=box)
        for step, values in self._drawn(rng):
            image = apply_pil(image, step, values)
        return image

    def _picture(self, file: Picture, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(np.array(self.pixels(file, rng))).permute(2, 0, 1)


def _decode(file: Picture) -> Tensor:
    if is_raw(file):
        return torch.from_numpy(np.array(file.read_pixels())).permute(2, 0, 1)
    encoded = str(file) if isinstance(file, Path) else torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    decoded: Tensor = decode_image(encoded, ImageReadMode.RGB, apply_exif_orientation=True)
    return decoded


class TorchvisionDataset(_Baseline):
    """Decodes with torchvision.io and transforms with torchvision v2, on tensors."""

    def pixels(self, file: Picture, rng: np.random.Generator) -> Tensor:
        """Return the picture before normalization, (3, size, size) uint8."""
        with warnings.catch_warnings():
            # Of torchvision 0.29, which sends its users to a package that few have yet.
            warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)
            image = _decode(file)
        left, top, right, bottom = (round(v) for v in window(self._steps[0], image.shape[2], image.shape[1], rng))
        size = [self._recipe.size] * 2
        image = F.resized_crop(image, top, left, bottom - top, right - left, size, antialias=True)
        for step, values in self._drawn(rng):
            image = apply_torchvision(image, step, values)
        return torch.as_tensor(image)

    def _picture(self, file: Picture, rng: np.random.Generator) -> Tensor:
        return self.pixels(file, rng)


def data_loader(
    dataset: _Baseline, *, batch_size: int, workers: int, pin_memory: bool
) -> DataLoader[tuple[Tensor, int]]:
    """Return a shuffling DataLoader whose workers persist.

    They are forked from a process that has imported this module and no more: DALI does not survive a fork.
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
