"""Each finding appears exactly when it should; the figure can be drawn for any data set."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.data.dataset import Dataset, Split, Target, Task
from augment.drawing.style import save_figure
from augment.tools.info.duplicates import Copies
from augment.tools.info.figure import draw
from augment.tools.info.findings import find_problems
from augment.tools.info.scan import FACTS, Scan
from augment.tools.info.summary import Info
from augment.tools.info.text import report

NO_PAIRS = np.empty((0, 2), np.int64)


def make_info(
    train: list[Target], val: list[Target], classes: tuple[str, ...] = ("cat", "dog"), task: Task = "classify"
) -> Info:
    """Return the info of valid images of 300 x 200 px that do not exist."""
    files = [tuple(Path(f"/data/{split}/{i}.jpg") for i in range(len(of))) for split, of in (("t", train), ("v", val))]
    data = Dataset(classes, Split(files[0], tuple(train)), Split(files[1], tuple(val)), task)
    facts = np.zeros(len(train) + len(val), FACTS)
    for name, value in {
        "good": True,
        "width": 300,
        "height": 200,
        "bytes": 9000,
        "format": "JPEG",
        "mode": "RGB",
    }.items():
        facts[name] = value
    facts["orientation"] = 1
    return Info("folder", 128, data, Scan(facts, {}), Copies((), NO_PAIRS))


def sound() -> Info:
    return make_info([0, 1] * 20, [0, 1] * 5)


def having(count: int, **facts: object) -> Info:
    """Return sound data of which the first images have other facts."""
    info = sound()
    for name, value in facts.items():
        info.scan.facts[name][:count] = value
    return info


def enlarged(info: Info) -> Info:
    """Make all images large."""
    info.scan.facts["width"], info.scan.facts["height"] = 600, 400
    return info


def unreadable() -> Info:
    info = having(1, good=False, width=0, height=0, bytes=0, format="", mode="", orientation=0)
    return replace(info, scan=Scan(info.scan.facts, {0: "is empty (0 bytes)"}))


def with_copies(groups: tuple[tuple[int, ...], ...] = (), pairs: tuple[tuple[int, int], ...] = ()) -> Info:
    return replace(sound(), copies=Copies(groups, np.array(pairs, np.int64).reshape(-1, 2)))


CASES: dict[str, tuple[Callable[[], Info], set[str], str]] = {
    "sound": (sound, set(), ""),
    "unreadable": (unreadable, {"unreadable"}, "1 image of 50"),
    # Of 40 train images cats are even and dogs odd; so in val, which begins at 40.
    "leak": (lambda: with_copies(groups=((0, 40),)), {"leak"}, "1 of 10 val images (10%)"),
    "leak by looks": (lambda: with_copies(pairs=((0, 40), (2, 40))), {"near_leak"}, "1 of 10"),
    "two labels": (lambda: with_copies(groups=((0, 1),)), {"contradiction", "duplicates"}, "(cat) and t/1.jpg (dog)"),
    "two labels by looks": (lambda: with_copies(pairs=((0, 41),)), {"near_contradiction", "near_leak"}, "v/1.jpg"),
    "copies in val": (lambda: with_copies(groups=((40, 42, 44),)), {"duplicates"}, "2 of 10 val images (20%)"),
    "imbalance": (lambda: make_info([0] * 50 + [1] * 10, [0, 1] * 8), {"imbalance"}, "a ratio of 5 to 1; data."),
    "little imbalance": (lambda: make_info([0] * 49 + [1] * 10, [0, 1] * 8), set(), ""),
    "tiny": (lambda: make_info([0] * 20 + [1] * 9, [0, 1] * 5), {"tiny"}, "dog (9)"),
    "missing in val": (lambda: make_info([0, 1] * 20, [0] * 10), {"missing_in_val"}, "dog"),
    "missing in train": (lambda: make_info([0] * 40, [0, 1] * 5), {"missing_in_train"}, "cannot be learned: dog"),
    "one class": (lambda: make_info([0] * 40, [0] * 10, ("cat",)), {"one_class"}, ""),
    "large val": (lambda: make_info([0, 1] * 20, [0, 1] * 20), {"val_share"}, "(50%), many"),
    "small val": (lambda: make_info([0, 1] * 50, [0, 1]), {"val_share"}, "(2%), few"),
    "small": (lambda: having(5, height=127), {"small"}, "5 of 50 images (10%)"),
    "few are small": (lambda: having(4, height=127), set(), ""),
    "large": (lambda: having(50, width=600, height=400), {"large"}, "convert data=folder --to webdataset"),
    "large, with numbers": (
        lambda: enlarged(make_info([(0.0,), (1.0,)] * 20, [(0.0,), (1.0,)] * 5, ("age",), "regress")),
        {"large"}, "convert data=folder --to webdataset",
    ),
    "long": (lambda: having(1, width=601), {"aspect"}, "601 x 200"),
    "other size": (lambda: having(40, width=380, height=300), {"other_size"}, "300 px in train and 200 px in val"),
    "alpha": (lambda: having(1, mode="PA"), {"alpha"}, ""),
    "cmyk": (lambda: having(1, mode="CMYK"), {"cmyk"}, ""),
    "deep": (lambda: having(1, mode="I;16"), {"deep"}, ""),
    "gray": (lambda: having(3, mode="L"), {"gray"}, "in color"),
    "hardly any gray": (lambda: having(2, mode="L"), set(), ""),
    "all gray": (lambda: having(50, mode="L"), set(), ""),
    "turned": (lambda: having(1, orientation=3), {"exif"}, ""),
    "sideways": (lambda: having(5, orientation=6, width=200, height=300), {"exif"}, ""),
    "blank": (lambda: having(2, blank=True), {"blank"}, "t/0.jpg, "),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_findings_of_classes(name: str):
    make, kinds, part = CASES[name]
    found = find_problems(make(), skip_bad=False, convert="data=folder")
    assert {finding.kind for finding in found} == kinds
    assert any(part in finding.text for finding in found) or not part


def test_gray_images_can_give_a_class_away():
    info = having(0)
    info.scan.facts["mode"][0:40:2] = "L"
    (finding,) = find_problems(info)
    assert "80% of cat but 0% of the others" in finding.text


@pytest.mark.parametrize(
    ("skip_bad", "remedy"), [(None, "Repair"), (False, "data.skip_bad=true skips it"), (True, "(data.skip_bad=true)")]
)
def test_the_remedy_for_bad_files_depends_on_the_source(skip_bad: bool | None, remedy: str):
    (finding,) = find_problems(unreadable(), skip_bad=skip_bad)
    assert remedy in finding.text


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        ([(1.0, 0.0), (1.0, 1.0)], {"everywhere"}),
        ([(1.0, 0.0), (0.0, 1.0)], set()),
        ([(0.0, 1.0), (0.0, 0.0)], {"missing_in_train", "missing_in_val"}),
    ],
)
def test_findings_of_labels(labels: list[Target], kinds: set[str]):
    info = make_info(labels * 20, labels * 5, task="multilabel")
    assert {finding.kind for finding in find_problems(info)} == kinds
    assert info.plain()["classes"]["cat"] == {"train": info.counts[0, 0], "val": info.counts[0, 1]}


@pytest.mark.parametrize(
    ("train", "val", "kinds"),
    [
        ((-1.0, 1.0), (-1.0, 1.0), set()),
        ((38.0, 42.0), (38.0, 42.0), set()),  # learned in standard deviations from the mean
        ((2.0, 2.0), (2.0, 2.0), {"constant"}),
        ((-1.0, 1.0), (-1.0, 2.5), {"range"}),
    ],
)
def test_findings_of_numbers(train: tuple[float, float], val: tuple[float, float], kinds: set[str]):
    targets: list[list[Target]] = [[(number,) for number in both] for both in (train, val)]
    info = make_info(targets[0] * 20, targets[1] * 5, ("age",), "regress")
    assert {finding.kind for finding in find_problems(info)} == kinds
    mean = info.plain()["numbers"]["age"]["train"]["mean"]
    assert mean == pytest.approx(sum(train) / 2)


def test_numbers_of_near_duplicates_may_differ_but_not_of_exact_ones():
    targets: list[Target] = [(float(i % 2),) for i in range(40)]
    info = make_info(targets, targets[:10], ("age",), "regress")
    info = replace(info, copies=Copies(((0, 1),), np.array([(0, 3)])))
    assert {finding.kind for finding in find_problems(info)} == {"contradiction", "duplicates", "near_duplicates"}


def many(classes: int) -> Info:
    """Return data of many classes, of which the first are large."""
    train: list[Target] = [number for number in range(classes) for _ in range(1 + 200 // (number + 1))]
    return make_info(train, list(range(classes)), tuple(f"class {number}" for number in range(classes)))


def numbers() -> Info:
    targets: list[Target] = [tuple(float(i + j) for j in range(6)) for i in range(10)]
    return make_info(targets, targets[:2], tuple("abcdef"), "regress")


def nothing_usable() -> Info:
    info = having(50, good=False, width=0, height=0, bytes=0, format="", mode="", orientation=0)
    return replace(info, scan=Scan(info.scan.facts, dict.fromkeys(range(50), "is empty (0 bytes)")))


@pytest.mark.parametrize(
    "make",
    [
        *(sound, lambda: many(1), lambda: many(60), numbers, nothing_usable, lambda: with_copies(pairs=((0, 40),))),
        pytest.param(lambda: make_info([0, 1] * 20, [0, 1] * 5, task="focal"), id="a task of a plugin"),
    ],
)
def test_report_and_figure_of_all_kinds_of_data(make: Callable[[], Info], tmp_path: Path):
    info: Any = make()
    assert report(info, find_problems(info)).startswith("folder: ")
    save_figure(draw(info), tmp_path / "info.png", 40)
    assert (tmp_path / "info.png").stat().st_size > 5000


def test_the_charts_of_sizes_name_both_axes():
    share = "of the split's images"
    names = [(axes.get_xlabel(), axes.get_ylabel()) for axes in draw(sound()).axes[-3:]]
    assert names == [("width, px", "height, px"), ("px", share), ("width : height", share)]


def test_the_most_severe_pairs_are_shown_first():
    info = with_copies(pairs=((0, 2), (2, 40), (4, 5)))
    assert info.pairs == [(2, 40), (4, 5), (0, 2)]  # of two splits, with two labels, just twice


def test_of_many_classes_the_largest_and_smallest_are_listed():
    lines = report(many(60), []).splitlines()
    listed = [line.split("  ")[0] for line in lines if line.startswith("class ")]
    assert listed == [f"class {number}" for number in [*range(8), *range(52, 60)]]
    assert "  ... 44 between the largest and the smallest" in lines


def test_near_duplicates_are_reported_with_caution() -> None:
    """Images that are naturally alike look the same, too."""
    info = with_copies(groups=((1, 3), (2, 41)), pairs=((0, 40), (4, 5), (6, 8)))
    texts = {finding.kind: finding.text for finding in find_problems(info)}
    near = {"near_leak", "near_contradiction", "near_duplicates"}
    assert near | {"leak", "contradiction", "duplicates"} == set(texts)
    assert {kind for kind, text in texts.items() if "naturally alike" in text} == near
    assert {kind for kind, text in texts.items() if "must be wrong" in text} == {"contradiction"}
