"""The benchmark: arithmetic, all rows on a few images, and baselines that match our pipeline."""

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu
from PIL import Image
from rich.console import Console

from augment.data.dataset import Split
from augment.data.selection import whole_batches
from augment.pipeline.loader import Loader
from augment.recipe.op import _OPS, OPS
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug, parse_aug
from augment.support.timing import Result, Timing, contention_warning, own_seconds, ratio, stopwatch
from augment.tools.bench.baselines import (
    HAS_TORCHVISION,
    PilDataset,
    PlainRecipe,
    TorchvisionDataset,
    draw,
    obstacle,
    window,
)
from augment.tools.bench.command import main
from augment.tools.bench.contenders import CONTENDERS, op_contenders, without_steps
from augment.tools.bench.handwritten import TRANSLATIONS, handwritten_pipeline, untranslated
from augment.tools.bench.measure import make_report, time_stream
from augment.tools.bench.setup import Setup, Stream
from augment.tools.bench.startup import measure_start

SETTINGS: dict[str, Any] = {
    "recipe_name": "mine",
    "size": 64,
    "batch_size": 8,
    "rounds": 3,
    "seconds": 1.0,
    "photos": {"count": 10, "mean_bytes": 2000.0},
    "hardware": {"cpu": "one", "cores": 2, "gpu": None},
}


def result(name: str, *speeds: float, left_out: str = "") -> Result:
    """A row whose rounds took two seconds and one of two cores."""
    return Result(name, f"row {name}", tuple(Timing(round(2 * s), 2.0, 2.0) for s in speeds), left_out)


# --- arithmetic ---


def test_ratios_are_medians_over_rounds():
    slow, fast = result("slow", 100, 50, 30), result("fast", 200, 200, 300)
    assert ratio(slow, fast) == 0.25  # of 0.5, 0.25 and 0.1; the medians' ratio is 0.25 too, their means' is not
    assert ratio(fast, slow) == 4
    # The machine was slow in the second round: both rows say so, and it cancels out.
    assert ratio(result("a", 100, 10, 90), result("b", 200, 20, 180)) == 0.5
    assert ratio(slow, None) is None
    assert ratio(slow, result("never", left_out="why")) is None


def test_report_in_plain_values():
    report = make_report("mine", (result("decode", 400, 200, 300), result("fused", 100, 100, 300)), SETTINGS)
    plain = json.loads(json.dumps(report.plain()))
    assert {"size": 64, "batch_size": 8, "rounds": 3}.items() <= plain.items()
    decode, fused = plain["rows"]
    assert (decode["images_per_second"], decode["lowest"], decode["highest"]) == (300, 200, 400)
    assert decode["of_decode"] == 1
    assert fused["of_decode"] == 0.5
    assert fused["of_crop"] is None
    assert fused["cpu_cores"] == 1
    assert len(fused["rounds"]) == 3


def test_table_and_chart_of_measured_and_left_out_rows(tmp_path):
    rows = (
        result("decode", 400.0, 300, 300),
        result("read", 90_000, 9000, 90_000),
        result("cached", left_out="no GPU"),
    )
    report = make_report("mine", rows, SETTINGS)
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(report.table())
    text = captured.get()
    assert "row decode" in text
    assert "300..400" in text
    assert "left out: row cached (no GPU)" in text
    report.write(tmp_path / "made" / "here")
    assert sorted(path.name for path in (tmp_path / "made" / "here").iterdir()) == ["bench.json", "bench.png"]
    with Image.open(tmp_path / "made" / "here" / "bench.png") as image:
        assert min(image.size) > 200


def test_a_narrow_table_truncates_no_number():
    rows = (result("decode", 400), result("fused", 225_666), result("x" * 40, 1000))
    console = Console(width=80, record=True)
    with console.capture() as captured:
        console.print(make_report("mine", rows, SETTINGS | {"rounds": 1}).table())
    text = captured.get()
    assert "225,666..225,666" in text
    assert "…" not in text
    assert " 2.50 \n" in text
    assert "1 round of 1 s" in " ".join(text.split())


def test_prefetched_batches_are_not_timed_and_strides_are_whole():
    taken = count()

    def batches() -> Any:
        for _ in taken:
            yield 10

    timing = time_stream(Stream(batches(), prefetched=5, stride=3), seconds=1e-9)
    assert timing.images == 30
    assert next(taken) == 8


def test_epochs_are_whole_batches():
    files = [Path(str(i)) for i in range(5)]
    assert len(whole_batches(files, 2, least=4)) == 8
    assert set(whole_batches(files, 2, least=1)) == set(files)
    assert len(whole_batches(files, 2, least=1)) == 6


def test_other_programs_on_the_cpu_give_a_warning():
    quiet, loud = Timing(100, 2.0, 3.0, 0.1), Timing(100, 2.0, 1.0, 2.0)
    assert contention_warning([Result("a", "a", (quiet, quiet, Timing(100, 2.0, 3.0, None)))]) == ""
    warning = contention_warning([Result("a", "a", (quiet, loud)), Result("b", "b", (quiet,))])
    assert warning.startswith("1 of 3 timings")
    assert "up to 1.0 cores" in warning


def test_cpu_time_of_workers_counts():
    before = own_seconds() - process_time()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(pow, 3, 1_500_000).result()
        least = pool.submit(process_time).result()
        counted = own_seconds() - process_time() - before
        most = pool.submit(process_time).result()
    assert least > 0.1
    assert least - 0.05 < counted < most + 0.05  # /proc counts in ticks


# --- the command line ---


def test_unknown_row_is_an_error_with_a_suggestion(capsys, photos):
    with pytest.raises(SystemExit, match="2"):
        main(["+aug=imagenette", "--photos", str(photos[0].parent), "--rows", "decode,fussed"])
    error = capsys.readouterr().err
    assert "unknown row 'fussed'" in error
    assert "Did you mean 'fused'?" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--seconds", "never"], "--seconds"),
        (["--thread", "2"], "--thread"),
        (["imagenette"], "imagenette"),
        (["--photos", "/nowhere/at/all"], "no such folder"),
        (["+aug.trian.flip.p=1"], "aug.trian"),
        (["+aug=imagenett"], "imagenett"),
        (["+aug=imagenette", "--also", "rand_augmet"], "rand_augment"),
        (["--ops", "rotat"], "Did you mean 'rotate'"),
        (["--ops", "one_of"], "one_of"),
        (["--peers", "--model", "resnet-1"], "no model 'resnet-1'"),
    ],
)
def test_mistakes_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--rows", "read"])
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("no_settling")
@pytest.mark.long
def test_every_row_on_a_few_images(photos, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["+aug=imagenette", "aug.size=32", "--photos", str(photos[0].parent), "--batch-size", "4"]
    short = ["--rounds", "2", "--seconds", "0.02", "--threads", "1", "--workers", "1", "--out", str(out)]
    assert main([*arguments, *short, "--also", "trivial_augment", "--ops", "solarize"]) == 0
    plain = json.loads((out / "bench.json").read_text())
    assert [row["name"] for row in plain["rows"]] == [
        *(row.name for row in CONTENDERS),
        "trivial_augment",
        "op solarize",
    ]
    left_out = {row["name"] for row in plain["rows"] if row["left_out"]}
    assert left_out <= {"cached"} | (set() if HAS_TORCHVISION else {"torchvision"})
    for row in plain["rows"]:
        if row["name"] not in left_out:
            assert len(row["rounds"]) == 2
            assert 0 < row["lowest"] <= row["images_per_second"] <= row["highest"]
            assert row["cpu_cores"] > 0
            assert row["of_decode"] > 0
            assert row["of_crop"] > 0
    assert plain["photos"] == {
        "count": 6,
        "mean_bytes": pytest.approx(np.mean([file.stat().st_size for file in photos])),
        "mean_width": 64,
        "mean_height": 64,
    }
    assert plain["size"] == 32
    assert plain["versions"]["torch"]
    assert "fused" in capsys.readouterr().out


def test_energy_per_image_is_the_median_of_the_rounds_that_know_it():
    timings = (Timing(100, 1.0, 1.0, None, 30.0), Timing(100, 1.0, 1.0, None, 10.0), Timing(100, 1.0, 1.0))
    assert Result("a", "a", timings).millijoules == 200
    assert Result("a", "a", timings[2:]).millijoules is None


@needs_gpu
def test_the_gpu_counts_its_energy():
    stop = stopwatch()
    end = monotonic() + 0.5
    while monotonic() < end:
        torch.ones(4096, 4096, device="cuda") @ torch.ones(4096, 4096, device="cuda")
    seconds, _, _, joules = stop()
    assert joules is None or 10 < joules / seconds < 3000  # watts


def test_a_new_op_gets_a_row(monkeypatch):
    monkeypatch.setitem(_OPS, "mine", replace(OPS["rotate"], name="mine"))
    names = [row.name for row in op_contenders(["all"])]
    assert "op mine" in names
    assert not {"op resize", "op one_of"} & set(names), "crops, and policies without steps, do nothing by themselves"


@pytest.mark.usefixtures("no_settling")
def test_the_start_of_a_process_is_measured(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "augment.tools.bench.startup.measure_start", lambda arguments: {"total": 2.0, "seen": len(arguments)}
    )
    given = ["+aug=imagenette", "--start", "--photos", str(photos[0].parent), "--rows", "read"]
    assert main([*given, "--rounds", "1", "--seconds", "0.01", "--batch-size", "2", "--out", str(tmp_path)]) == 0
    start = json.loads((tmp_path / "bench.json").read_text())["start"]
    assert start["total"] == 2
    assert start["seen"] > 5


@pytest.mark.long
def test_a_new_process_reaches_its_first_batch(photos):
    parts = measure_start(["+aug=imagenette", "--photos", str(photos[0].parent)], runs=1)
    assert list(parts)[-2:] == ["first batch", "total"]
    total = parts.pop("total")
    assert min(parts.values()) >= 0
    assert total == pytest.approx(sum(parts.values()))
    # PyTorch's is by far the largest of all imports, so the clock runs from the start of that process.
    assert parts["import torch"] > parts["Python"]


# --- that the rows do what they say ---


def loader_pixels(aug: Aug, files: tuple[Path, ...]) -> Any:
    """Our own pipeline's images in the order of the files, (N, size, size, 3)."""
    loader = Loader(
        build_plan(aug, "train"),
        Split(files, (0,) * len(files)),
        batch_size=len(files),
        seed=0,
        device=torch.device("cpu"),
        raw=True,
    )
    (batch,) = loader
    ordered = batch.images[torch.argsort(batch.indices)]
    return ordered.permute(0, 2, 3, 1).numpy().astype(int)


# What is beyond the edge differs: black in the baselines. So the middle is compared, from which nothing was moved out.
CERTAIN = [
    ({"flip": {}}, 0.01),
    ({"flip": {"direction": "vertical"}}, 0.01),
    ({"rotate": {"angle_range": [30, 30]}}, 0.5),
    ({"warp": {"magnitude_range": [0.05, 0.05]}}, 0.5),
    ({"affine": {"translate_range": [0.1, 0.1], "scale_range": [1.2, 1.2], "shear_range": [9, 9]}}, 0.5),
    ({"brightness": {"factor_range": [1.2, 1.2]}}, 0.6),
    ({"saturation": {"factor_range": [0.5, 0.5]}}, 0.8),
    # About gray 128, or about the image's mean gray: all pixels of an image are off by the same.
    ({"contrast": {"factor_range": [0.9, 0.9]}}, 5),
]
HUE = ({"hue": {"angle_range": [10, 10]}}, 0.8)  # in YIQ; torchvision turns HSV's hue


@pytest.mark.parametrize(
    ("steps", "mean"), [*CERTAIN, HUE], ids=lambda value: next(iter(value), "") if isinstance(value, dict) else ""
)
def test_baselines_match_our_pipeline(steps, mean, photos):
    aug = parse_aug({"size": 64, "train": steps})
    middle = np.s_[:, 20:44, 20:44]
    ours = loader_pixels(aug, photos)[middle]
    plain = loader_pixels(without_steps(aug), photos)[middle]
    rng, recipe = np.random.default_rng(0), PlainRecipe.of(aug)
    datasets = {"pil": PilDataset(photos, recipe)}
    if HAS_TORCHVISION and "hue" not in steps:
        datasets["torchvision"] = TorchvisionDataset(photos, recipe)
    pipeline = handwritten_pipeline(Setup(aug, tuple(photos), 6, 6))
    pipeline.build()
    for name, dataset in datasets.items():
        theirs = np.stack([dataset.pixels(file, rng).permute(1, 2, 0).numpy() for file in photos]).astype(int)[middle]
        assert np.abs(theirs - ours).mean() <= mean, name
        assert np.abs(theirs - plain).mean() > 2, name
    (images,) = pipeline.run()
    theirs = (
        np.asarray(images.as_tensor()) * np.array([0.229, 0.224, 0.225]) * 255 + np.array([0.485, 0.456, 0.406]) * 255
    )
    for image in theirs[middle]:  # DALI shuffles: the nearest of ours is the one
        assert min(np.abs(image - other).mean() for other in ours) <= mean


def test_items_are_normalized_like_our_batches(photos):
    aug = parse_aug({"size": 64, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "train": {"flip": {}}})
    raw = loader_pixels(aug, photos)[3]
    expected = (raw / 255 - [0.1, 0.2, 0.3]) / [0.4, 0.5, 0.6]
    for dataset in (PilDataset, TorchvisionDataset) if HAS_TORCHVISION else (PilDataset,):
        image, index = dataset(photos, PlainRecipe.of(aug))[3]
        assert index == 3
        np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), expected, atol=0.01)
        assert dataset(photos, PlainRecipe.of(aug, half=True))[3][0].dtype == torch.float16


def test_steps_are_applied_with_their_probability(photos):
    aug = parse_aug({"size": 64, "train": {"flip": {"p": 0.3}, "flip_2": {"op": "flip", "p": 0}}})
    dataset = PilDataset(photos[:1] * 200, PlainRecipe.of(aug))
    first = [dataset[i][0] for i in range(200)]
    upright = PilDataset(photos[:1], PlainRecipe.of(without_steps(aug)))[0][0]
    flipped = sum(not torch.equal(image, upright) for image in first)
    assert 35 <= flipped <= 85
    assert all(torch.equal(image, upright) or torch.equal(image, upright.flip(2)) for image in first)


@pytest.mark.parametrize(("width", "height"), [(90, 40), (40, 90), (400, 10)])
def test_windows_are_drawn_from_the_ranges(width, height):
    given = {"random_resized_crop": {"area_range": [0.2, 0.5], "aspect_range": [0.5, 2.0]}}
    (step,) = parse_aug({"train": given}).train
    rng = np.random.default_rng(0)
    windows = np.array([window(step, width, height, rng) for _ in range(300)])
    left, top, right, bottom = windows.T
    assert left.min() >= 0
    assert top.min() >= 0
    assert right.max() <= width
    assert bottom.max() <= height
    if width < 400:  # no window of these ranges fits in a strip, whose middle is taken
        share = (right - left) * (bottom - top) / (width * height)
        aspect = (right - left) / (bottom - top)
        assert 0.17 < share.min() < 0.25
        assert 0.4 < share.max() < 0.53
        assert aspect.min() < 0.7
        assert aspect.max() > 1.4
    else:
        assert set(map(tuple, windows)) == {(195, 0, 205, 10)}


def test_every_matrix_op_is_translated_or_left_out_with_a_reason(monkeypatch):
    names = [name for name, op in OPS.items() if op.kind in ("geometry", "color")]
    aug = parse_aug({"train": {name: {} for name in names}})
    setup = Setup(aug, (), 0, 1)
    assert obstacle(setup) == ""
    missing = [name for name in names if name not in TRANSLATIONS]
    reason = untranslated(build_plan(aug, "train").steps)
    assert reason == (f"no DALI translation of {', '.join(missing)}" if missing else "")
    monkeypatch.delitem(TRANSLATIONS, "warp")
    assert "warp" in untranslated(build_plan(aug, "train").steps)
    (row,) = [row for row in CONTENDERS if row.name == "dali"]
    assert "warp" in row.obstacle(setup)


def test_a_few_values_are_drawn_from_or_the_row_is_left_out(photos):
    few = {"values": [-0.1, 0.1]}
    aug = parse_aug({"size": 16, "train": {"affine": {"translate_range": few, "scale_range": {"values": [1.1]}}}})
    (step,) = parse_aug({"train": {"affine": {"translate_range": few}}}).train
    rng = np.random.default_rng(0)
    assert {draw(step, rng)["translate_x"] for _ in range(20)} == {-0.1, 0.1}
    assert PilDataset(photos, PlainRecipe.of(aug)).pixels(photos[0], rng).shape == (3, 16, 16)
    assert untranslated(build_plan(aug, "train").steps) == "no DALI translation of affine"


# --- a decoded batch in memory ---


@pytest.mark.slow
@pytest.mark.usefixtures("no_settling")
@pytest.mark.filterwarnings("ignore")  # of kornia, where it is installed
def test_a_batch_in_memory(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = [
        "--photos",
        str(photos[0].parent),
        "--rounds",
        "1",
        "--seconds",
        "0.01",
        "--batch-size",
        "4",
        "--threads",
        "1",
        "--out",
        "here",
    ]
    assert main(["--transform", "+aug=imagenette", "aug.size=16", *short]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "here" / "bench.json").read_text())["rows"]}
    assert list(rows) == ["transform", "kornia", "torchvision", "torchvision_each"]
    assert rows["transform"]["images_per_second"] > 0
    left_out = {name for name, row in rows.items() if row["left_out"]}
    assert left_out <= {"kornia", "torchvision", "torchvision_each"}
    for name in rows.keys() - left_out - {"transform"}:
        assert rows[name]["of_transform"] > 0
    assert "of transform" in capsys.readouterr().out
    assert main(["--transform", "+aug=imagenette", "aug.size=16", "aug.train.blur={op: gaussian_blur}", *short]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "here" / "bench.json").read_text())["rows"]}
    assert rows["torchvision"]["left_out"] in ("no translation of blur", "torchvision is not installed")
    assert rows["kornia"]["left_out"] in ("no translation of blur", "kornia is not installed")
