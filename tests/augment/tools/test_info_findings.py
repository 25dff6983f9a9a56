"""Each finding appears exactly when it should; the figure can be drawn for any data set."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from augment.data.dataset import Dataset, Split, Target
from augment.data.targets.boxes import Boxes
from augment.drawing.figure_style import save_figure
from augment.params import Size
from augment.tools.info.figure import draw
from augment.tools.info.scan import FACTS, Copies
from augment.tools.info.summary import Info
from augment.tools.info.text import find_problems, report

Pairs = tuple[tuple[int, int], ...]


def make_info(
    train: list[Target],
    val: list[Target],
    classes: tuple[str, ...] = ("cat", "dog"),
    task: str = "classify",
    *,
    same: Pairs = (),
    alike: Pairs = (),
) -> Info:
    """Return the info of valid images of 300 x 200 px that do not exist."""
    files = [tuple(Path(f"/data/{split}/{i}.jpg") for i in range(len(of))) for split, of in (("t", train), ("v", val))]
    data = Dataset(classes, Split(files[0], tuple(train)), Split(files[1], tuple(val)), task)
    fact = np.array([("", 300, 200, 9000, "JPEG", "RGB", 1, 0, 0, False)], FACTS)
    copies = Copies(*(np.array(pairs, np.int64).reshape(-1, 2) for pairs in (same, alike)))
    return Info("folder", Size(128, 128), data, np.repeat(fact, len(train) + len(val)), copies)


def sound(same: Pairs = (), alike: Pairs = ()) -> Info:
    """Return data of 40 train images, of which cats are even and dogs odd, and 10 of val, which begins at 40."""
    return make_info([0, 1] * 20, [0, 1] * 5, same=same, alike=alike)


def having(count: int, **facts: object) -> Info:
    """Return sound data of which the first images have other facts."""
    info = sound()
    for name, value in facts.items():
        info.facts[name][:count] = value
    return info


def unreadable(count: int = 1) -> Info:
    return having(count, fault="is empty (0 bytes)", width=0, height=0, bytes=0, format="", mode="", orientation=0)


def numbers(train: tuple[float, float], val: tuple[float, float], **copies: Pairs) -> Info:
    targets: list[list[Target]] = [[(number,) for number in both] for both in (train, val)]
    return make_info(targets[0] * 20, targets[1] * 5, ("age",), "regress", **copies)


def labels(first: Target, second: Target) -> Info:
    return make_info([first, second] * 20, [first, second] * 5, task="multilabel")


CASES: dict[str, tuple[Callable[[], Info], int, str]] = {
    "sound": (sound, 0, ""),
    "unreadable": (unreadable, 1, "1 image of 50"),
    "leak": (lambda: sound(same=((0, 40),)), 1, "1 of 10 val images (10%) is also in train"),
    "leak by looks": (lambda: sound(alike=((0, 40), (2, 40))), 1, "1 of 10"),
    "two labels": (lambda: sound(same=((0, 1),)), 1, "(train, cat) and /data/t/1.jpg"),
    "imbalance": (lambda: make_info([0] * 50 + [1] * 10, [0, 1] * 8), 1, "a ratio of 5 to 1. Use data."),
    "little imbalance": (lambda: make_info([0] * 49 + [1] * 10, [0, 1] * 8), 0, ""),
    "tiny": (lambda: make_info([0] * 20 + [1] * 9, [0, 1] * 5), 1, "dog (9)"),
    "missing in val": (lambda: make_info([0, 1] * 20, [0] * 10), 1, "cannot be scored: dog (20)"),
    "missing in train": (lambda: make_info([0] * 40, [0, 1] * 5), 1, "cannot be learned: dog (0)"),
    "misspelled": (
        lambda: make_info([0] * 19 + [1] * 19 + [2], [0, 1] * 5, ("cat", "dog", "dgo")),
        4, "Some labels may be misspelled. Did you mean 'dog' instead of 'dgo'?",
    ),
    "one class": (lambda: make_info([0] * 40, [0] * 10, ("cat",)), 1, ""),
    "small": (lambda: having(5, height=127), 1, "5 of 50 images (10%) have a short side below aug.size=128"),
    "few are small": (lambda: having(4, height=127), 0, ""),
    "labels": (lambda: labels((1.0, 0.0), (0.0, 1.0)), 0, ""),
    "a label without images": (lambda: labels((0.0, 1.0), (0.0, 0.0)), 2, ""),
    "numbers": (lambda: numbers((38.0, 42.0), (38.0, 42.0)), 0, ""),
    "other numbers": (lambda: numbers((-1.0, 1.0), (-1.0, 2.5)), 1, "-1..2.5 in val but -1..1 in train"),
    # Numbers of video frames may differ, but not those of copies.
    "copies with other numbers": (
        lambda: numbers((0.0, 1.0), (0.0, 1.0), same=((0, 1),), alike=((0, 3),)),
        1, "1 pair of identical files has different targets",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_findings(name: str) -> None:
    make, count, part = CASES[name]
    found = find_problems(make(), skip_bad=False)
    assert len(found) == count
    assert any(part in finding for finding in found) or not part


@pytest.mark.parametrize(
    ("skip_bad", "remedy"),
    [(None, "Repair"), (False, "set data.skip_bad=true"), (True, "(data.skip_bad=true)")],
)
def test_the_remedy_for_bad_files_depends_on_the_source(skip_bad: bool | None, remedy: str) -> None:
    (finding,) = find_problems(unreadable(), skip_bad=skip_bad)
    assert remedy in finding


def test_images_that_only_look_the_same_are_reported_with_caution() -> None:
    found = find_problems(sound(same=((1, 3), (2, 41)), alike=((0, 40), (4, 5), (6, 8))))
    leak, near, odd = found
    assert ["naturally similar" in finding for finding in (leak, near, odd)] == [False, True, False]


# --- text and figure ---


def many(classes: int) -> Info:
    """Return data of many classes, of which the first are large."""
    train: list[Target] = [number for number in range(classes) for _ in range(1 + 200 // (number + 1))]
    return make_info(train, list(range(classes)), tuple(f"class {number}" for number in range(classes)))


def several_numbers() -> Info:
    targets: list[Target] = [tuple(float(i + j) for j in range(6)) for i in range(10)]
    return make_info(targets, targets[:2], tuple("abcdef"), "regress")


DRAWN: dict[str, Callable[[], Info]] = {
    "many classes": lambda: many(60),
    "labels": lambda: labels((1.0, 1.0), (0.0, 1.0)),
    "numbers": several_numbers,
    "nothing usable": lambda: unreadable(50),
    "no val": lambda: make_info([0, 1] * 20, []),
}


@pytest.mark.parametrize("name", DRAWN)
def test_text_and_figure_of_all_kinds_of_data(name: str, tmp_path: Path) -> None:
    info = DRAWN[name]()
    assert report(info, find_problems(info)).startswith("folder: ")
    figure = draw(info)
    save_figure(figure, tmp_path / "info.png", 40)
    assert (tmp_path / "info.png").stat().st_size > 5000
    assert all(axes.get_xlabel() and axes.get_ylabel() for part in figure.subfigs[1:2] for axes in part.axes)


def test_data_without_a_class_is_described_and_drawn() -> None:
    blank = Boxes().blank(1)
    info = make_info([blank, blank], [blank], classes=("background",), task="detect")
    assert report(info, find_problems(info, skip_bad=True))
    assert draw(info)


def test_the_most_severe_pairs_are_shown_first() -> None:
    info = sound(alike=((0, 2), (2, 40), (4, 5)))
    assert info.ordered(info.copies.alike) == [(2, 40), (0, 2), (4, 5)]


def test_of_many_classes_the_largest_and_smallest_are_listed() -> None:
    lines = report(many(60), []).splitlines()
    listed = [line.split("  ")[0] for line in lines if line.startswith("class ")]
    assert listed == [f"class {number}" for number in [*range(12), *range(48, 60)]]
    assert "  ... 36 between the largest and the smallest" in lines
