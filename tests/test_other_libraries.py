"""What other libraries do in the benchmarks that are run by hand."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import build_loader

from augment.cli.benchmark import LeftOutError
from augment.data.dataset import ImageRef, Split
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug, parse_aug
from augment.tools.bench.rows import Setup, crop_of

sys.path.append(str(Path(__file__).parent / "benchmarks"))
import in_dali
import in_torchvision

# Of torchvision itself, which recommends another package for decoding since 0.29.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


def setup(aug: Aug, files: Sequence[ImageRef]) -> Setup:
    return Setup(aug, Namespace(batch_size=len(files), threads=1, workers=1, photos=None), lambda: files)


# What is beyond the edge differs: it is black there. So the middle is compared, from which nothing was moved out.
@pytest.mark.parametrize(
    ("steps", "mean"),
    [
        ({"flip": {"direction": "vertical"}}, 0.1),
        ({"rotate": {"angle_range": [30, 30]}}, 0.6),
        ({"brightness": {"factor_range": [1.2, 1.2]}}, 0.7),
        ({"saturation": {"factor_range": [0.5, 0.5]}}, 0.9),
        # About gray 128, or about the image's mean gray: all pixels of an image are off by the same.
        ({"contrast": {"factor_range": [0.8, 0.8]}}, 10),
    ],
    ids=str,
)
def test_other_libraries_do_what_we_do(steps: dict[str, Any], mean: float, photos: tuple[Path, ...]) -> None:
    aug = parse_aug({"size": 64, "mean": [0, 0, 0], "std": [1, 1, 1], "train": {"resize": {}, **steps}})
    given = setup(aug, photos)
    (batch,) = build_loader(given.plan, Split(photos, (0,) * 6), batch_size=6, seed=0)
    read = in_torchvision.Images(given.paths(), in_torchvision.transform(given.plan))
    by_torchvision = torch.stack([read[index] for index in batch.indices.tolist()])
    by_dali = torch.from_numpy(np.array(next(in_dali.op_by_op(given)).as_tensor())).permute(0, 3, 1, 2)
    ours, *others = (255 * images[:, :, 20:44, 20:44] for images in (batch.images, by_torchvision, by_dali))
    for other in torch.cat(others):  # DALI shuffles: the nearest of ours is the one
        assert min((image - other).abs().mean() for image in ours) <= mean


def test_steps_are_applied_with_their_probability(photos: tuple[Path, ...]) -> None:
    aug = parse_aug({"size": 64, "train": {"resize": {}, "flip": {"p": 0.3}, "flip_2": {"op": "flip", "p": 0}}})
    given, many = setup(aug, photos[:1]), setup(aug, photos[:1] * 200)
    upright = in_torchvision.Images(given.paths(), in_torchvision.transform(build_plan(crop_of(aug), "train")))[0]
    read = in_torchvision.Images(many.paths(), in_torchvision.transform(given.plan))
    by_dali = torch.from_numpy(np.array(next(in_dali.op_by_op(many)).as_tensor())).permute(0, 3, 1, 2)
    for images in (by_dali, [read[index] for index in range(200)]):
        flipped = [(image - upright.flip(2)).abs().mean() < 0.01 for image in images]
        assert 35 <= sum(flipped) <= 85


@pytest.mark.parametrize(
    ("library", "recipe", "reason"),
    [
        ("torchvision", {"train": {"erase": {}}}, "no torchvision translation of erase"),
        ("torchvision", {"train": {"rotate": {"angle_range": {"values": [-5, 5]}}}}, "of rotate"),
        ("torchvision", {"train": {"flip": {}}, "views": {"count": 2}}, "several views"),
        ("torchvision", {"train": {"resize": {"side": "short"}}}, "of resize"),
        ("dali", {"train": {"erase": {}}}, "no DALI translation of erase"),
        ("dali", {"train": {"contrast": {"pivot": "mean"}}}, "fixed pivot"),
    ],
    ids=str,
)
def test_what_a_library_lacks_is_left_out_with_the_reason(library: str, recipe: dict[str, Any], reason: str) -> None:
    given = setup(parse_aug({"size": 16, **recipe}), ())
    with pytest.raises(LeftOutError, match=reason):
        in_torchvision.transform(given.plan) if library == "torchvision" else in_dali.op_by_op(given)
