"""From labels to classes and targets: the same rules for all sources, files of names, and what is said of mistakes."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from augment.errors import UserError
from augment.targets.classes import Targets, read_names, understand_labels
from augment.targets.labels import Label, Labeled, join, pack


def labeled(key: str, labels: Sequence[Any], names: tuple[str, ...] | None = None) -> Labeled:
    lists: list[Sequence[Label]] = [label if isinstance(label, list) else [label] for label in labels]
    return Labeled(f"data.{key}", pack(lists, f"{key}{{}}".format), f"{key}{{}}".format, names)


def understand(train: Sequence[Any], val: Sequence[Any], **settings: Any) -> Targets:
    return understand_labels(labeled("train", train), labeled("val", val), **settings)


def test_names_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("sea lion \nhäst\n\n\n", encoding="utf-8")
    assert read_names(str(tmp_path / "names")) == ("sea lion", "häst")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"cat\n\ndog\n", "line 2 is empty"),
        (b"cat\ndog\ncat\n", "lines 1 and 3 are both 'cat'"),
        (b"\xff\xfe", "is no text"),
    ],
)
def test_files_of_names_that_are_none(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "names").write_bytes(content)
    with pytest.raises(UserError, match=rf"^data\.classes=.*names: {message}"):
        read_names(str(tmp_path / "names"))


def test_numbers_may_have_gaps_of_which_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    found = understand([0, 3, 3], [3, 1])
    assert (found.task, found.names) == ("classify", ("0", "1", "2", "3"))
    assert (found.train, found.val) == ((0, 3, 3), (3, 1))
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 classes have no picture in train: 1, 2.",
        "2 of 4 classes have no picture in val: 0, 2.",
    ]


def test_an_offset_counts_for_numbers_only() -> None:
    found = understand([7, 5], [6, 5], offset=5)
    assert (found.names, found.train, found.val) == (("5", "6", "7"), (2, 0), (1, 0))
    assert understand([7, 5], [5], offset=5, classes=("a", "b", "c")).train == (2, 0)
    assert understand(["b", "a"], ["a"], offset=5).train == (1, 0)


def test_names_that_come_with_the_data_are_taken_unless_others_are_given() -> None:
    train, val = (labeled(key, [1, 0], ("cat", "dog")) for key in ("train", "val"))
    assert understand_labels(train, val).names == ("cat", "dog")
    assert understand_labels(train, val, classes=("a", "b")).names == ("a", "b")
    with pytest.raises(UserError, match=r"^data: the files of val come with other names of classes \(dog, cat\)"):
        understand_labels(train, labeled("val", [1, 0], ("dog", "cat")))


def test_several_labels_are_ones_and_zeros(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = understand([[0, 2], [], [1], [2, 0, 2]], [[2], []])
    assert (found.task, found.names) == ("multilabel", ("0", "1", "2"))
    assert found.train == ((1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0))
    assert found.val == ((0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    assert "2 pictures have several labels" in caplog.text
    assert understand(["a", []], [[], "a"], task="multilabel").train == ((1.0,), (0.0,))
    assert understand([["b", "a"]], [["a"]], offset=1).train == ((1.0, 1.0),)


def test_labels_of_several_files_are_joined() -> None:
    parts = [pack(part, str) for part in ([["b"], ["d", "a"]], [[]], [["c"], ["b"]])]
    joined = join(parts, str)
    assert [joined.words[place] for place in joined.values] == ["b", "d", "a", "c", "b"]
    assert joined.counts.tolist() == [1, 2, 0, 1, 1]
    assert [joined.owner(place) for place in range(5)] == [0, 1, 1, 3, 4]
    with pytest.raises(
        UserError, match=r"^p1 has the label 4, and p3 has the label 'c'. Allowed: numbers or names, not"
    ):
        join([pack([[]], str), pack([[4]], str), pack([[], ["c"]], str)], "p{}".format)


@pytest.mark.parametrize(
    ("train", "val", "settings", "message"),
    [
        ([0, 1], [0, 2, 3], {}, "data.val: val1 has the label 2, which is out of range. Allowed: 0 to 1, as the "
         "highest in train is 1."),
        ([0, -1, 1, -2], [0], {}, "data.train: train1 has the label -1, which is out of range. Allowed: 0 to 1"),
        ([-3], [-3], {}, "data.train: train0 has the label -3, which is out of range. Allowed: whole numbers from 0."),
        ([[0, 1], [1, 5]], [0], {"classes": ("a", "b")}, "data.train: train1 has the label 5, which is out of range. "
         "Allowed: 0 to 1, as 2 classes have names."),
        ([1, 2], [1], {"classes": ("a", "b")}, "0 to 1, as 2 classes have names. Do labels begin at 1? Then set "
         "data.label_offset=1."),
        ([0, 1], [1], {"offset": 1}, "data.train: train0 has the label 0, which is out of range. Allowed: 1 to 1, as "
         "the highest in train is 1 (data.label_offset=1)."),
        ([0, 2**30], [0], {}, "data.train: train1 has the label 1073741824, which is no number of a class. Allowed "
         "without data.classes: below 1,000,000."),
        ([[0, 1], 10_000], [0], {}, "which is no number of a class. Allowed without data.classes: below 10,000."),
        ([0, 2**70], [0], {}, "train1 has the label 1180591620717411303424, which is no number of a class."),
        ([0, 1.5], [0], {}, "data.train: train1 has the label 1.5. Allowed: whole numbers."),
        ([float("inf"), 0.0], [0], {}, "data.train: train0 has the label inf. Allowed: whole numbers."),
        (["cat", "dog"], ["dog", "dgo"], {}, "data.val: val1 has the label 'dgo', which is unknown. Did you mean "
         "'dog'? Allowed: cat, dog."),
        ([0, "cat"], [0], {}, "train1 has the label 'cat'"),
        (["cat"], [0], {}, "data: train0 has the label 'cat', and val0 has the label 0. Allowed: numbers or names"),
        ([0, []], [0], {}, "data.train: train1 has no label. Allowed: one, or any number with data.multilabel=true."),
        ([0, [0, 1], []], [0], {"task": "classify"}, "data.train: train1 has 2 labels (2 pictures have none"),
        ([[], []], [0], {"task": "multilabel"}, "data.train: train0 has no label, and no other picture has one."),
        ([0], [], {}, "data.val: holds no pictures."),
        ([1], [0], {}, "data: no class of val is in train; train has 1, val 0."),
    ],
)  # fmt: skip
def test_a_mistake_names_the_first_picture(
    train: list[Any], val: list[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        understand(train, val, **settings)
    assert message in str(caught.value)


def test_of_many_classes_only_the_nearest_is_said() -> None:
    with pytest.raises(UserError) as caught:
        understand([f"class {i:02}" for i in range(60)], ["clas 07"])
    assert str(caught.value) == (
        "data.val: val0 has the label 'clas 07', which is unknown. Did you mean 'class 07'? Allowed: one of 60 classes."
    )
