"""Run steps on images and compare the results with references; shared by the tests of ops."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decoded import decoded, pixels_of
from numpy.typing import NDArray
from photos import draw_photo
from PIL import Image

from augment.data.dataset import ImageRef
from augment.params import Size
from augment.pipeline.graph.build import build_pipeline
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import Reading
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.stage import Draws, Stage
from augment.recipe.step import Step
from augment.recipe.steps import SplitName, parse_aug

SIZE = 64
COUNT = 24  # images of a test of an op
SEED = 11
Pixels = NDArray[Any]


def plan_of(steps: dict[str, Any], split: SplitName = "val", size: int | Sequence[int] = SIZE, **aug: object) -> Plan:
    return build_plan(parse_aug({"size": size, split: steps, **aug}), split)


def step_matrix(step: Step, drawn: Draws, size: int) -> Pixels:
    """Return a step's matrix for each sample, square, the identity where the step does not apply."""
    stage = Stage("geometry" if step.op.kind == "geometry" else "color", ((step,),))
    matrix = stage.matrix({step.key: drawn}, Size(size, size))
    columns = matrix.shape[-1]
    return np.concatenate([matrix, np.broadcast_to(np.eye(columns)[3:], (len(matrix), columns - 3, columns))], axis=1)


def render(plan: Plan, files: Sequence[ImageRef], device: torch.device) -> Pixels:
    """Run images through a val plan: (files, size, size, 3) int, in the order of the files; DALI decodes nothing."""
    assert plan.split == "val"
    files = decoded(files)
    placement = Placement("gpu" if device.type == "cuda" else "cpu")
    pipeline = build_pipeline(plan, Reading(files, len(files), SEED), placement, OutputFormat(raw=True))
    pipeline.build()
    pipeline.schedule_run()
    made = pipeline.take_outputs(torch.cuda.current_stream() if device.type == "cuda" else None)
    assert made.index[:, 0].tolist() == list(range(len(files)))
    return made.views[0].cpu().numpy().astype(int)


def draws_of(plan: Plan, count: int) -> dict[str, Draws]:
    """Return the draws of `render`."""
    return Sampler(plan, SEED).draw(0, 0, count)


def one_of_values(*values: float) -> dict[str, list[float]]:
    """Return a range that draws one of a few values."""
    return {"values": list(values)}


def compare(
    op: str,
    params: dict[str, Any],
    reference: Callable[..., Pixels],
    files: Sequence[ImageRef],
    device: torch.device,
    inside: int = 0,
) -> tuple[float, float]:
    """Run an op on images and compare each with `reference(image, **drawn values)`.

    Args:
        inside: number of pixels at each edge that are ignored.

    Returns:
        The largest difference, and the largest mean difference of an image.
    """
    plan = plan_of({op: params})
    drawn = {n: v for n, v in draws_of(plan, len(files))[op].items() if n != "applied"}
    expected = [
        reference(image.astype(np.uint8), **{n: v[i] for n, v in drawn.items()}) for i, image in enumerate(read(files))
    ]
    off = np.abs(render(plan, files, device) - np.stack(expected).astype(float))
    off = off[:, inside : SIZE - inside, inside : SIZE - inside]
    return float(off.max()), float(off.mean(axis=(1, 2, 3)).max())


def rounding(most: float, device: torch.device) -> float:
    """Return `most`, plus one on the GPU, which rounds ties differently; zero stays zero."""
    return most + 1 if most and device.type == "cuda" else most


def read(files: Sequence[ImageRef]) -> Pixels:
    return np.stack([pixels_of(file) for file in files]).astype(int)


def save(folder: Path, images: Sequence[Pixels]) -> list[Path]:
    """Write images as PNG."""
    files = [folder / f"{number:03}.png" for number in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image.astype(np.uint8)).save(file)
    return files


def vivid_images(count: int) -> list[Pixels]:
    """Draw images of 64 x 64 px that use all levels: high-contrast photos, a dark one, a constant channel, noise."""
    rng = np.random.default_rng(0)
    images = [np.clip((draw_photo(SIZE, SIZE, seed).astype(int) - 70) * 2.5 - 20, 0, 255) for seed in range(count)]
    images[1] = images[1] * 0.3 + 9
    images[2][..., 0] = 77
    images[3] = rng.integers(0, 256, (SIZE, SIZE, 3)).astype(float)
    return [np.rint(image) for image in images]


def chi_square(counts: Sequence[float], expected: Sequence[float]) -> float:
    """Return the p-value of a chi-square test of counts; expected counts are scaled to the same sum."""
    from scipy.stats import chisquare

    observed, wanted = np.asarray(counts, float), np.asarray(expected, float)
    return float(chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)
