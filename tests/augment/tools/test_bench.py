"""The benchmark of loading: its command line, its rows on a few images, and what other libraries do in them."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import build_loader

from augment.data.dataset import ImageRef, Split
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug, parse_aug
from augment.support.measurement import LeftOutError
from augment.tools.bench import dali, torchvision
from augment.tools.bench.command import main
from augment.tools.bench.rows import Setup, crop_of, file_rows, op_rows

# Of torchvision itself, which recommends another package for decoding since 0.29.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

ALL = ["read", "decode", "crop", "fused", "steps", "dali", "cached", "torchvision"]
BRIEF = ["--batch-size", "4", "--rounds", "2", "--seconds", "0.02", "--threads", "1"]


def setup(aug: Aug, files: Sequence[ImageRef]) -> Setup:
    return Setup(aug, Namespace(batch_size=len(files), threads=1, workers=1, photos=None), lambda: files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--transform", "--rows", "fused"], "--rows: unknown row 'fused'"),
        (["+aug=imagenette", "--also", "rand_augmet"], "--also: aug: unknown name 'rand_augmet'"),
        (["--ops", "one_of"], "no op 'one_of' that has an effect"),
        (["--transform", "--workers", "2"], "--workers: not used with --transform."),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("no_settling")
@pytest.mark.long
def test_every_row_on_a_few_images(
    photos: tuple[Path, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["+aug=imagenette", "aug.size=32", "--photos", str(photos[0].parent), "--workers", "1", *BRIEF]
    assert main([*given, "--also", "trivial_augment", "--ops", "solarize", "--out", str(tmp_path)]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert list(rows) == [*ALL, "trivial_augment", "op solarize"]
    for row in rows.values():
        assert row["left_out"] == ("no GPU" if row["name"] == "cached" and not torch.cuda.is_available() else None)
        assert row["left_out"] or (len(row["rounds"]) == 2 and row["of_decode"] > 0 and row["of_crop"] > 0)
    printed = capsys.readouterr().out
    assert "imagenette at 32 px" in printed
    assert "6 images of" in " ".join(printed.split())


@pytest.mark.slow
@pytest.mark.usefixtures("no_settling")
def test_a_batch_in_memory(photos: tuple[Path, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--transform", "+aug=imagenette", "aug.size=16", "--photos", str(photos[0].parent), *BRIEF]
    assert main([*given, "--out", str(tmp_path)]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert list(rows) == ["transform", "torchvision", "torchvision_each"]
    assert all(row["of_transform"] > 0 for row in rows.values())
    assert main([*given, "aug.train.blur={op: gaussian_blur}", "--out", str(tmp_path)]) == 0
    assert "no torchvision translation of blur" in " ".join(capsys.readouterr().out.split())


def test_images_in_larger_files_are_loaded_by_this_project_only(image_files: Split) -> None:
    class Stored:
        name = "0.jpg"

        def read(self) -> bytes:
            return Path(str(image_files.files[0])).read_bytes()

    given = setup(parse_aug({"size": 16, "train": {"flip": {}}}), [Stored(), Stored()])
    for row in file_rows(given):
        if row.name in ("crop", "fused", "steps"):
            assert row.start()(1) == 2
        elif row.name != "cached":
            with pytest.raises(LeftOutError, match="not separate files"):
                row.start()(1)


def test_each_op_with_an_effect_of_its_own_gets_a_row() -> None:
    names = {row.name for row in op_rows(setup(parse_aug({}), ()), ["all"])}
    assert {"op flip", "op solarize", "op rand_augment", "op mixup"} <= names
    assert not {"op resize", "op one_of"} & names, "crops, and policies without steps, do nothing by themselves"


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
    read = torchvision.Images(given.paths(), torchvision.transform(given.plan))
    by_torchvision = torch.stack([read[index] for index in batch.indices.tolist()])
    by_dali = torch.from_numpy(np.array(next(dali.op_by_op(given)).as_tensor())).permute(0, 3, 1, 2)
    ours, *others = (255 * images[:, :, 20:44, 20:44] for images in (batch.images, by_torchvision, by_dali))
    for other in torch.cat(others):  # DALI shuffles: the nearest of ours is the one
        assert min((image - other).abs().mean() for image in ours) <= mean


def test_steps_are_applied_with_their_probability(photos: tuple[Path, ...]) -> None:
    aug = parse_aug({"size": 64, "train": {"resize": {}, "flip": {"p": 0.3}, "flip_2": {"op": "flip", "p": 0}}})
    given, many = setup(aug, photos[:1]), setup(aug, photos[:1] * 200)
    upright = torchvision.Images(given.paths(), torchvision.transform(build_plan(crop_of(aug), "train")))[0]
    read = torchvision.Images(many.paths(), torchvision.transform(given.plan))
    by_dali = torch.from_numpy(np.array(next(dali.op_by_op(many)).as_tensor())).permute(0, 3, 1, 2)
    for images in (by_dali, [read[index] for index in range(200)]):
        flipped = [(image - upright.flip(2)).abs().mean() < 0.01 for image in images]
        assert 35 <= sum(flipped) <= 85


@pytest.mark.parametrize(
    ("library", "recipe", "reason"),
    [
        (torchvision, {"train": {"erase": {}}}, "no torchvision translation of erase"),
        (torchvision, {"train": {"rotate": {"angle_range": {"values": [-5, 5]}}}}, "of rotate"),
        (torchvision, {"train": {"flip": {}}, "views": {"count": 2}}, "several views"),
        (torchvision, {"train": {"resize": {"side": "short"}}}, "of resize"),
        (dali, {"train": {"erase": {}}}, "no DALI translation of erase"),
        (dali, {"train": {"contrast": {"pivot": "mean"}}}, "fixed pivot"),
    ],
    ids=str,
)
def test_what_a_library_lacks_is_left_out_with_the_reason(library: Any, recipe: dict[str, Any], reason: str) -> None:
    given = setup(parse_aug({"size": 16, **recipe}), ())
    with pytest.raises(LeftOutError, match=reason):
        torchvision.transform(given.plan) if library is torchvision else dali.op_by_op(given)
