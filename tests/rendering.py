"""Steps carried out for real, on pictures that the tests can read too: what the tests of ops have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import draw_photo
from numpy.typing import NDArray
from PIL import Image

from augment.config import SplitName, parse_aug
from augment.graph import Placement
from augment.pipeline import build_pipeline
from augment.plan import Plan, build_plan
from augment.sampler import Sampler
from augment.stage import Draws

SIZE = 64
SEED = 11
Pixels = NDArray[Any]


def plan_of(steps: dict[str, Any], split: SplitName = "val", size: int = SIZE, **aug: object) -> Plan:
    return build_plan(parse_aug({"size": size, split: steps, **aug}), split)


def render(plan: Plan, files: Sequence[Path], device: torch.device) -> Pixels:
    """Return the pictures of a val plan, (files, size, size, 3) int, in the order of the files."""
    assert plan.split == "val"
    placement = Placement("gpu" if device.type == "cuda" else "cpu")
    pipeline = build_pipeline(plan, files, batch_size=len(files), seed=SEED, placement=placement, raw=True)
    images, index = pipeline.run()
    assert np.asarray(index.as_cpu().as_tensor())[:, 0].tolist() == list(range(len(files)))
    return np.asarray(images.as_cpu().as_tensor()).astype(int)


def draws_of(plan: Plan, count: int) -> dict[str, Draws]:
    """Return what `render` draws."""
    return Sampler(plan, SEED).draw(0, 0, count)


def one_of_values(*values: float) -> dict[str, list[float]]:
    """Return a range of a few values."""
    return {"values": list(values)}


def compare(
    op: str,
    params: dict[str, Any],
    reference: Callable[..., Pixels],
    files: Sequence[Path],
    device: torch.device,
    inside: int = 0,
) -> tuple[float, float]:
    """Carry out one op on pictures and compare each with `reference(picture, **drawn values)`.

    Args:
        inside: pixels at each edge that are not compared.

    Returns:
        The largest difference, and the largest mean difference of a picture.
    """
    plan = plan_of({op: params})
    drawn = {n: v for n, v in draws_of(plan, len(files))[op].items() if n != "applied"}
    expected = [
        reference(picture.astype(np.uint8), **{n: v[i] for n, v in drawn.items()})
        for i, picture in enumerate(read(files))
    ]
    off = np.abs(render(plan, files, device) - np.stack(expected).astype(float))
    off = off[:, inside : SIZE - inside, inside : SIZE - inside]
    return float(off.max()), float(off.mean(axis=(1, 2, 3)).max())


def rounding(most: float, device: torch.device) -> float:
    """Return a largest difference, on the GPU one more: it breaks ties in another way. Zero stays zero."""
    return most + 1 if most and device.type == "cuda" else most


def read(files: Sequence[Path]) -> Pixels:
    return np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files]).astype(int)


def save(folder: Path, pictures: Sequence[Pixels]) -> list[Path]:
    """Write pictures as PNG."""
    files = [folder / f"{number:03}.png" for number in range(len(pictures))]
    for file, picture in zip(files, pictures, strict=True):
        Image.fromarray(picture.astype(np.uint8)).save(file)
    return files


def vivid_pictures(count: int) -> list[Pixels]:
    """Draw pictures of 64 x 64 px over all levels: photos of more contrast, a dark one, a flat channel, noise."""
    rng = np.random.default_rng(0)
    pictures = [np.clip((draw_photo(SIZE, SIZE, seed).astype(int) - 70) * 2.5 - 20, 0, 255) for seed in range(count)]
    pictures[1] = pictures[1] * 0.3 + 9
    pictures[2][..., 0] = 77
    pictures[3] = rng.integers(0, 256, (SIZE, SIZE, 3)).astype(float)
    return [np.rint(picture) for picture in pictures]


def chi_square(counts: Sequence[float], expected: Sequence[float]) -> float:
    """Return the p-value of counts, were they drawn with the expected ones, which are scaled to the same sum."""
    from scipy.stats import chisquare

    observed, wanted = np.asarray(counts, float), np.asarray(expected, float)
    return float(chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)
