"""The benchmark: what is timed, and how rows are compared and shown."""

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import pytest
import torch
from fakes import needs_gpu
from PIL import Image
from rich.console import Console

from augment.data.selection import whole_batches
from augment.support.errors import UserError
from augment.support.timing import Result, Timing, contention_warning, own_seconds, ratio, stopwatch
from augment.tools.bench.measure import make_report, time_stream
from augment.tools.bench.setup import Stream

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


def test_the_table_is_printed_even_if_no_file_can_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out .*file/out: cannot be written: Not a directory"):
        make_report("mine", (result("decode", 400),), SETTINGS).finish(tmp_path / "file" / "out")
    assert "row decode" in capsys.readouterr().out


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
    files = [Path(str(i)) for i in range(65)]
    assert len(whole_batches(files, 4)) == 128
    assert set(whole_batches(files, 2)) == set(files)
    assert len(whole_batches(files, 2)) == 66


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
