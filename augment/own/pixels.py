"""Pictures as people's own code hands them over: paths, encoded bytes, Pillow's images, arrays and tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from augment.own.named import describe
from augment.stored import as_ppm, to_rgb

# Pillow's modes of 8 bits a channel, which become RGB without a guess.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")

ALLOWED = "a path, encoded bytes, a Pillow image, a uint8 array (height, width, 3) or a uint8 tensor (3, height, width)"


@dataclass(frozen=True)
class Given:
    """A picture as it was handed over.

    Attributes:
        path: of its file, if it is one.
        encoded: its bytes, if it is encoded.
        pixels: (height, width, 3) RGB, if it is decoded.
    """

    path: Path | None = None
    encoded: bytes | None = None
    pixels: NDArray[np.uint8] | None = None

    @property
    def decoded(self) -> bool:
        """Whether it was handed over decoded."""
        return self.pixels is not None

    def read(self) -> bytes:
        """Return its bytes; of one that is decoded, as PPM.

        Raises:
            OSError: its file cannot be read.
        """
        if self.pixels is not None:
            return as_ppm(self.pixels)
        if self.path is not None:
            return self.path.read_bytes()
        assert self.encoded is not None
        return self.encoded


def take(value: object) -> Given | str:
    """Return a picture, or what is wrong with it, to be read after "is"."""
    if path := as_path(value):
        return Given(path=path)
    if isinstance(value, bytes | bytearray | memoryview):
        return Given(encoded=bytes(value))
    if isinstance(value, Image.Image):
        return _of_pillow(value)
    if isinstance(value, torch.Tensor):
        # Channels first, as torchvision has its pictures.
        return _of_array(value.detach().cpu().numpy(), "tensor", lambda pixels: np.moveaxis(pixels, 0, 2))
    if isinstance(value, np.ndarray):
        return _of_array(value, "array", lambda pixels: pixels)
    return describe(value)


def as_path(value: object) -> Path | None:
    """Return the path that a picture is handed over as, if it is one."""
    return Path(value).expanduser() if isinstance(value, str | PathLike) else None


def _of_pillow(image: Image.Image) -> Given | str:
    if image.mode not in _MODES:
        why = ", which has more than 8 bits a channel" if image.mode.startswith(("I", "F")) else ""
        return f"a Pillow image of mode {image.mode}{why}"
    if 0 in image.size:
        return f"a Pillow image of {image.width} x {image.height} pixels"
    return Given(pixels=np.asarray(to_rgb(image)))


def _of_array(
    value: NDArray[Any], kind: str, channels_last: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
) -> Given | str:
    shown = f"{'an' if kind == 'array' else 'a'} {kind} {tuple(value.shape)} of {value.dtype}"
    if value.dtype != np.uint8:
        why = "; ToTensor and Normalize are left to the `aug` section" if value.dtype.kind == "f" else ""
        return f"{shown}{why}"
    if value.ndim == 1 and len(value):
        return Given(encoded=value.tobytes())
    pixels = value[..., None] if value.ndim == 2 else channels_last(value) if value.ndim == 3 else value
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
        return shown
    return Given(pixels=np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))))
