"""Checks the images and targets that a user passes to a `Transform`, and converts them to the input of DALI."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from augment.data.check import Decoder
from augment.data.image_faults import DECODER_ERRORS, describe_damage, find_fault_of_header, is_rare
from augment.data.images import TURNED, has_range, is_turned, open_with_pillow, orientation_of, to_rgb, upright_size
from augment.data.targets.boxes import Boxes
from augment.data.targets.classification import CLASSES
from augment.data.targets.combined import Several
from augment.data.targets.keypoints import FlipPairs, Keypoints
from augment.data.targets.kind import Kind
from augment.data.targets.masks import MASKS
from augment.data.targets.multilabel import LABELS
from augment.data.targets.spatial import SpatialKind
from augment.params.pixel_format import RGB, PixelFormat
from augment.support.errors import UserError, first_line
from augment.support.formatting import amount

_ALLOWED = (
    "a uint8 tensor or array (N, height, width, 3), a list of uint8 images (height, width, 3) or PIL images, or a "
    "list of bytes"
)
_OTHERS = 'For other channels or data types, create the transform with pixels=augment.PixelFormat.of(10, "uint16").'
_FOR_A_MODEL = (
    "a uint8 array or tensor (height, width, 3), a PIL image, a path or bytes, because the model was trained on 8-bit "
    "RGB images."
)
_IN_A_LIST = " Pass a single image in a list."


@dataclass(frozen=True)
class InputImages:
    kind: Literal["encoded", "cpu", "gpu"]  # "cpu" and "gpu" are decoded images on that device
    data: Any  # in the form that DALI's external_source takes
    turned: str = ""  # the first Pillow image that was turned upright, such as images[3]

    def __len__(self) -> int:
        return len(self.data)

    def sizes(self) -> NDArray[np.int64]:
        """Return the height and width of each image, (N, 2)."""
        if self.kind == "encoded":
            return np.array([_header(data, number)[0] for number, data in enumerate(self.data)])
        if isinstance(self.data, list):
            return np.array([image.shape[:2] for image in self.data])
        return np.tile(self.data.shape[1:3], (len(self), 1))

    def orientations(self) -> NDArray[np.int64]:
        """Return the EXIF orientation of each image, (N,). Decoded images have orientation 1.

        Raises:
            UserError: a Pillow image was turned upright, so its targets may belong to either orientation.
        """
        if self.turned:
            raise UserError(f"{self.turned} is {TURNED}")
        if self.kind == "encoded":
            return np.array([_header(data, number)[1] for number, data in enumerate(self.data)])
        return np.ones(len(self), np.int64)


def read_images(given: Any, device: torch.device, pixels: PixelFormat = RGB) -> InputImages:
    """Check images that a user passed to a transform on a device."""
    if isinstance(given, Tensor | np.ndarray):
        _check(given, 4, "images", pixels)
        return InputImages(_kind(given, device, "images"), _filled(_plain(given), pixels))
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        hint = _IN_A_LIST if isinstance(given, Image.Image | bytes) else _hint_of_type(given)
        allowed = f"Allowed: {_ALLOWED}." if pixels.is_rgb else f"Pass arrays of {pixels}, channels last."
        raise UserError(f"images: {type(given).__name__} is not allowed.{hint} {allowed}")
    if not given:
        raise UserError("images: the list is empty. Pass at least one image.")
    if pixels.is_rgb and all(isinstance(image, bytes | bytearray | memoryview) for image in given):
        decoder = Decoder()
        for number, image in enumerate(given):
            # DALI decodes some rare formats wrongly without an error, and crashes on others.
            fault = decoder.find_fault(image) if is_rare(image) else find_fault_of_header(image)[0]
            if fault:
                raise UserError(f"images[{number}] {fault}.")
        return InputImages("encoded", [np.frombuffer(image, np.uint8) for image in given])
    images = list(given)
    if pixels.is_rgb:
        images = [_pixels(one, number) if isinstance(one, Image.Image) else one for number, one in enumerate(given)]
    for number, image in enumerate(images):
        _check(image, 3, f"images[{number}]", pixels)
    kinds = {_kind(image, device, f"images[{number}]") for number, image in enumerate(images)}
    if len(kinds) > 1:
        raise UserError("images: some are on the CPU and some on the GPU. Move all to the same device.")
    turned = (f"images[{number}]" for number, image in enumerate(given) if is_turned(image))
    return InputImages(kinds.pop(), [_filled(_plain(image), pixels) for image in images], next(turned, ""))


def read_targets(given: Any, count: int, device: torch.device, *, mixing: str, classes: int | None) -> Tensor | None:
    """Check targets that describe whole images, and move them to a device. Without targets, return None.

    Args:
        given: the targets, as `Transform.__call__` takes them.
        count: number of images.
        device: the device of the result.
        mixing: the names of the steps that mix samples, for messages. Empty without such steps.
        classes: number of classes, if known.
    """
    if given is None:
        if mixing:
            raise UserError(f"targets are missing, but {mixing} mixes them. Call transform(images, targets).")
        return None
    allowed = f"Allowed: ({count},) class indices, or ({count}, K) floats."
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"targets cannot be converted to a tensor: {first_line(error)}. {allowed}") from error
    floats = found.is_floating_point()
    if found.shape[:1] != (count,) or found.ndim != (2 if floats else 1):
        dtype = str(found.dtype).removeprefix("torch.")
        raise UserError(f"targets: {tuple(found.shape)} {dtype} for {amount(count, 'image')}. {allowed}")
    if mixing and not floats:
        if classes is None:
            raise UserError(f"classes is missing, but {mixing} mixes class indices. Call Transform(..., classes=N).")
        # Do not check classes on a GPU, because reading them would wait for the GPU.
        beyond = [t for t in found.tolist() if not 0 <= t < classes] if found.device.type == "cpu" else []
        if beyond:
            raise UserError(f"targets: class {beyond[0]} does not exist. Allowed: 0 to {classes - 1}.")
    tensor = found.to(device, non_blocking=True)
    return tensor.float() if floats else tensor.long()


def kind_of(targets: Any, flip_pairs: FlipPairs) -> SpatialKind | None:
    """Infer the kind of masks, boxes or keypoints from their type and shape. Return None for other targets."""
    if isinstance(targets, Mapping):
        return Several({name: kind_of(own, flip_pairs) or plain_kind(own) for name, own in targets.items()})
    listed = isinstance(targets, Sequence) and len(targets) > 0
    one = targets[0] if listed else targets
    if isinstance(one, Mapping):
        return Boxes(flip_pairs=flip_pairs if any("keypoints" in boxes for boxes in targets) else ())
    try:
        shape, dtype = np.shape(one), getattr(one, "dtype", None) or np.asarray(one).dtype
    except ValueError:  # rows have different lengths
        return None
    if len(shape) != (2 if listed else 3):
        return None
    # A list of integer rows could be keypoints or a mask. Hardly any mask is only two or three pixels wide.
    points = "float" in str(dtype) or (isinstance(one, Sequence) and shape[-1] in (2, 3))
    return Keypoints(flip_pairs if shape[-2] > 1 else ()) if points else MASKS


def plain_kind(targets: Any) -> Kind:
    """Return the kind of targets that describe whole images. Floats are labels or regression targets."""
    return LABELS if torch.as_tensor(targets).is_floating_point() else CLASSES


def check_encoded(images: InputImages) -> None:
    """Raise a UserError that names the first encoded image that cannot be decoded."""
    if images.kind == "encoded":
        decoder = Decoder()
        for number, data in enumerate(images.data):
            if fault := decoder.find_fault(data.tobytes()):
                raise UserError(f"images[{number}] {fault}.")


def pixels_of(image: Any, number: int, pixels: PixelFormat = RGB) -> NDArray[Any]:
    """Return the pixels of an image for a trained model, (height, width, channels). `number` is for messages."""
    if isinstance(image, Image.Image) and pixels.is_rgb:
        return _pixels(image, number)
    _check(image, 3, f"images[{number}]", pixels, _FOR_A_MODEL)
    found: NDArray[Any] = _plain(image.cpu() if isinstance(image, Tensor) else image)
    return found


def _check(image: Any, ndim: int, what: str, pixels: PixelFormat, rgb: str = f"{_ALLOWED}. {_OTHERS}") -> None:
    """Check that an image, or a batch of images, has the given pixel format and its channels last.

    `rgb` describes what is allowed if the format is 8-bit RGB.
    """
    allowed = f"Allowed: {rgb}" if pixels.is_rgb else f"Pass arrays of {pixels}, channels last."
    if not isinstance(image, Tensor | np.ndarray):
        raise UserError(f"{what}: {type(image).__name__} is not allowed.{_hint_of_type(image)} {allowed}")
    dtype, shape = str(image.dtype).removeprefix("torch."), tuple(image.shape)
    if dtype != pixels.dtype or len(shape) != ndim or shape[-1] != pixels.channels or 0 in shape:
        hint = _hint(dtype, shape, ndim, pixels)
        raise UserError(f"{what}: {dtype} {shape} is not allowed.{hint} {allowed}")


def _hint_of_type(given: Any) -> str:
    return " Read a file with Path(file).read_bytes()." if isinstance(given, str | Path) else ""


def _hint(dtype: str, shape: tuple[int, ...], ndim: int, pixels: PixelFormat) -> str:
    """Return the probable remedy for a wrong image, or for a wrong batch if `ndim` is 4."""
    whole, lacks_one = len(shape) == ndim, len(shape) == ndim - 1
    order = "images.permute(0, 2, 3, 1)" if ndim == 4 else "image.permute(1, 2, 0)"
    hints = {
        " Remove ToTensor and Normalize.": pixels.is_rgb and "float" in dtype,
        f" Move the channels last: {order}.": whole and shape[-3] == pixels.channels != shape[-1],
        " Remove the alpha channel: [..., :3].": pixels.is_rgb and whole and shape[-1] == 4,
        _IN_A_LIST: ndim == 4 and lacks_one and shape[-1] == pixels.channels,
        " Gray images need three channels: np.stack([gray] * 3, -1).": pixels.is_rgb and lacks_one,
        " Add the channel: image[..., None].": pixels.channels == 1 and lacks_one,
    }
    return next((hint for hint, applies in hints.items() if applies), "")


def _pixels(image: Image.Image, number: int) -> NDArray[np.uint8]:
    if not has_range(image):
        raise UserError(
            f"images[{number}]: a PIL image of mode {image.mode} is not allowed. Scale it to 0..255, and "
            "convert it to RGB."
        )
    try:
        return np.asarray(to_rgb(image))
    except DECODER_ERRORS as error:  # the image's file is damaged or closed
        raise UserError(f"images[{number}] cannot be decoded: {error or type(error).__name__}.") from error


def _kind(image: Any, device: torch.device, what: str) -> Literal["cpu", "gpu"]:
    """Return the kind of device that holds an image."""
    if not isinstance(image, Tensor) or image.device.type == "cpu":
        return "cpu"
    if image.device.type != device.type:
        raise UserError(
            f"{what}: the input is on {image.device}, but the transform runs on {device}. Move the images to {device}."
        )
    return "gpu"


def _plain(image: Any) -> Any:
    """Make an image contiguous. On the CPU, convert it to a NumPy array."""
    if isinstance(image, Tensor):
        image = image.detach().contiguous()
        return image if image.is_cuda else image.numpy()
    return np.ascontiguousarray(image)


def _filled(image: Any, pixels: PixelFormat) -> Any:
    """Replace values that mean no data, as a loader does."""
    if pixels.nodata is None:
        return image
    low = pixels.empty_value
    if not isinstance(image, Tensor):
        return np.where((image == pixels.nodata) | np.isnan(image), low, image)
    values = image.float()  # PyTorch supports few operations on uint16
    empty = (values == pixels.nodata) | values.isnan()
    return torch.where(empty, torch.from_numpy(low).float().to(image.device, non_blocking=True), values).to(image.dtype)


def _header(data: NDArray[np.uint8], number: int) -> tuple[tuple[int, int], int]:
    """Return the height and width of an encoded image after its EXIF turn, and its EXIF orientation."""
    try:
        with open_with_pillow(BytesIO(data.tobytes())) as image:
            (width, height), orientation = upright_size(image), orientation_of(image)
    except (*DECODER_ERRORS, Image.DecompressionBombError) as error:
        raise UserError(f"images[{number}] {describe_damage(BytesIO(data.tobytes()))}.") from error
    return (height, width), orientation
