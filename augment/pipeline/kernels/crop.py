"""The kernel that resizes windows of decoded images, see `augment.pipeline.kernels.decoded_images`. It needs Triton."""

# Python types cannot describe Triton's language.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from augment.params import Size
from augment.pipeline.kernels.local_ops import filter_of, load, store

_BLOCK = 256  # pixels of the result


def resize_windows(images: Tensor, windows: Tensor, size: Size) -> Tensor:
    """Resize a window of each image, as DALI does, with a triangular filter.

    On each side, the filter extends by one output pixel if the window is shrunk, and by one image pixel if it is
    enlarged.

    Args:
        images: (N, height, width, 3) uint8, contiguous.
        windows: start and end, (y, x) in pixels, (N, 4) float32, contiguous.
        size: height and width of the results.

    Returns:
        (N, *size, 3) uint8.
    """
    out = torch.empty((len(images), *size, 3), dtype=torch.uint8, device=images.device)
    with torch.cuda.device_of(images):
        _resize[(len(images), triton.cdiv(size.height * size.width, _BLOCK))](
            images, windows, out, *images.shape[1:3], *size, block=_BLOCK
        )
    return out


@triton.jit(do_not_specialize=["windows", "height", "width", "rows", "columns"])
def _resize(images, windows, out, height, width, rows, columns, block: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    kept = pixel < rows * columns
    source = images + sample * height * width * 3
    y, x, reach_y, reach_x, first_y, first_x, taps_y, taps_x = filter_of(windows + sample * 4, pixel, rows, columns)
    red, green, blue = tl.zeros([block], tl.float32), tl.zeros([block], tl.float32), tl.zeros([block], tl.float32)
    total = tl.zeros([block], tl.float32)
    for row in range(taps_y):
        v = first_y + row
        share_y = tl.maximum(1 - tl.abs(v.to(tl.float32) - y) / reach_y, 0.0)
        line = source + tl.minimum(tl.maximum(v, 0), height - 1) * width * 3
        for column in range(taps_x):
            u = first_x + column
            share = share_y * tl.maximum(1 - tl.abs(u.to(tl.float32) - x) / reach_x, 0.0)
            level_r, level_g, level_b = load(line + 3 * tl.minimum(tl.maximum(u, 0), width - 1), kept)
            red += share * level_r
            green += share * level_g
            blue += share * level_b
            total += share
    store(out + sample * rows * columns * 3 + 3 * pixel, red / total, green / total, blue / total, kept)
