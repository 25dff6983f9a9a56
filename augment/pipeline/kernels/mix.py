"""The kernel that mixes the samples and targets of a batch, see `batch_assembly.Mixer`. It needs Triton."""

# Python types cannot describe Triton's language.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # numbers that a block of threads mixes


def mix(images: Tensor, targets: Tensor, records: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mix each sample with the next one of its batch.

    Args:
        images: (N, 3, height, width) float in channels_last memory.
        targets: (N,) class indices, or (N, K) float32 labels or regression targets.
        records: (N, stages, 6) float32, contiguous: left, right, top and bottom of a rectangle, the weight of the
            sample's own image in the rectangle, and the weight of the sample's own target.
        classes: number of classes, if targets are class indices.

    Returns:
        The mixed images, in the form of `images`, and the mixed targets, (N, classes) or (N, K) float32.
    """
    count, _, height, width = images.shape
    labels, targets = targets.is_floating_point(), targets.contiguous()
    columns = targets.shape[1] if labels else classes
    mixed = torch.empty_like(images)
    shares = torch.empty((count, columns), dtype=torch.float32, device=images.device)
    pieces = triton.cdiv(3 * height * width, _BLOCK)
    with torch.cuda.device_of(images):
        _mix[(count, pieces + 1)](
            images,
            mixed,
            targets,
            shares,
            records,
            records.shape[1],
            height,
            width,
            columns,
            labels=labels,
            block=_BLOCK,
        )
    return mixed, shares


# Compile once, for any memory alignment of a batch's records.
@triton.jit(do_not_specialize=["targets", "records", "stages", "height", "width", "columns"])
def _mix(
    images, mixed, targets, shares, records, stages, height, width, columns,
    labels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    partner = (sample + 1) % tl.num_programs(0)
    given = records + sample * stages * 6
    piece = tl.program_id(1)
    if piece < tl.num_programs(1) - 1:
        length = 3 * height * width
        number = piece * block + tl.arange(0, block)
        x, y = number // 3 % width, number // 3 // width
        own = tl.load(images + sample * length + number, mask=number < length, other=0).to(tl.float32)
        other = tl.load(images + partner * length + number, mask=number < length, other=0).to(tl.float32)
        for _ in range(stages):
            inside = (x >= tl.load(given)) & (x < tl.load(given + 1)) & (y >= tl.load(given + 2))
            weight = tl.where(inside & (y < tl.load(given + 3)), tl.load(given + 4), 1.0)
            own = _between(other, own, weight)
            given += 6
        tl.store(mixed + sample * length + number, own, mask=number < length)
    else:
        for start in range(0, columns, block):
            column = start + tl.arange(0, block)
            kept = column < columns
            if labels:
                own = tl.load(targets + sample * columns + column, mask=kept, other=0)
                other = tl.load(targets + partner * columns + column, mask=kept, other=0)
            else:
                own = (column == tl.load(targets + sample)).to(tl.float32)
                other = (column == tl.load(targets + partner)).to(tl.float32)
            for stage in range(stages):
                own = _between(other, own, tl.load(given + 6 * stage + 5))
            tl.store(shares + sample * columns + column, own, mask=kept)


@triton.jit
def _between(start, end, weight):
    """Interpolate like PyTorch. Weights of 0 and 1 return exactly the start and the end."""
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))
