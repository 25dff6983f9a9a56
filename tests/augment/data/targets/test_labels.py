"""From labels to classes and targets: common rules for all sources, files of names, and error messages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from augment.data.dataset import Dataset
from augment.data.sources.loading import describe_missing
from augment.data.targets.class_names import Label, LabeledSplit, TargetOptions, pack, read_names
from augment.data.targets.interpretation import make_dataset
from augment.support.errors import UserError


def labeled(key: str, labels: Sequence[Any], names: tuple[str, ...] | None = None) -> LabeledSplit:
    lists: list[Sequence[Label]] = [label if isinstance(label, list) else [label] for label in labels]
    images = [Path(f"{key}{index}") for index in range(len(lists))]
    return LabeledSplit(f"data.{key}", images, pack(lists, f"{key}{{}}".format), f"{key}{{}}".format, names)


def understand(train: Sequence[Any], val: Sequence[Any], *, task: str = "", **options: Any) -> Dataset:
    given = TargetOptions(task, **options)
    return make_dataset([labeled("train", train), labeled("val", val)], given, has_number_types=False)


def test_class_names_are_read_one_per_line(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("sea lion \nhäst\n\n\n", encoding="utf-8")
    assert read_names(str(tmp_path / "names")) == ("sea lion", "häst")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 is empty"),
        (b"\n\n", "line 1 is empty"),
        (b"cat\n\ndog\n", "line 2 is empty"),
        (b"cat\ndog\ncat\n", "'cat' occurs twice"),
    ],
)
def test_invalid_files_of_class_names_are_rejected(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes(content)
    with pytest.raises(UserError, match=rf"^data\.classes=.*names: {message}"):
        read_names(str(tmp_path / "names"))


def test_gaps_between_numbers_are_noticed() -> None:
    found = understand([0, 3, 3], [3, 1])
    assert (found.task, found.classes) == ("classify", ("0", "1", "2", "3"))
    assert (found.train.targets, found.val.targets) == ((0, 3, 3), (3, 1))
    assert describe_missing(found) == [
        "2 of 4 classes have no image in train: 1, 2.",
        "2 of 4 classes have no image in val: 0, 2.",
    ]


def test_labels_that_begin_at_one_get_a_hint() -> None:
    found = understand([1, 2], [1, 2], offset=1)
    assert (found.classes, describe_missing(found)) == (("1", "2"), [])
    hint = "1 of 3 classes has no image in train: 0. If labels begin at 1, set data.label_offset=1."
    assert describe_missing(understand([1, 2], [0, 1, 2])) == [hint]


def test_a_misspelled_class_gets_a_hint() -> None:
    missing = "1 of 3 classes has no image in val: sprnger."
    val = ["springer", "church"]
    hint = "Did you mean 'springer' instead of 'sprnger'?"
    assert describe_missing(understand([*val, "sprnger"], val)) == [f"{missing} {hint}"]
    assert describe_missing(understand([*val, "sprnger", "sprnger"], val)) == [missing]
    both = [f"2 of 4 classes have no image in val: chuch, sprnger. Did you mean 'church' instead of 'chuch'? {hint}"]
    assert describe_missing(understand([*val, "sprnger", "chuch"], val)) == both
    cut = understand([*val, "dog"], [*val, "sprnger"], classes=("church", "dog", "springer", "sprnger"))
    assert describe_missing(cut)[0].endswith(f"no image in train: sprnger. {hint}")
    tail = [f"{name}{letter}" for name in val for letter in "ab"]
    assert describe_missing(understand([*val, *tail], val))[0].endswith("churcha, churchb, springera, springerb.")


def test_an_offset_applies_to_numbers_only() -> None:
    found = understand([7, 5], [6, 5], offset=5)
    assert (found.classes, found.train.targets, found.val.targets) == (("5", "6", "7"), (2, 0), (1, 0))
    assert understand([7, 5], [5], offset=5, classes=("a", "b", "c")).train.targets == (2, 0)
    assert understand(["b", "a"], ["a"], offset=5).train.targets == (1, 0)


def test_given_class_names_override_those_of_the_data() -> None:
    train, val = (labeled(key, [1, 0], ("cat", "dog")) for key in ("train", "val"))
    assert make_dataset([train, val], TargetOptions()).classes == ("cat", "dog")
    assert make_dataset([train, val], TargetOptions(classes=("a", "b"))).classes == ("a", "b")
    with pytest.raises(UserError, match=r"^data: val has the class names dog, cat, but train has"):
        make_dataset([train, labeled("val", [1, 0], ("dog", "cat"))], TargetOptions())


def test_several_labels_are_ones_and_zeros() -> None:
    found = understand([[0, 2], [], [1], [2, 0, 2]], [[2], []])
    assert (found.task, found.classes) == ("multilabel", ("0", "1", "2"))
    assert found.train.targets == ((1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0))
    assert found.val.targets == ((0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    assert understand(["a", []], [[], "a"], task="multilabel").train.targets == ((1.0,), (0.0,))
    assert understand([["b", "a"]], [["a"]], offset=1).train.targets == ((1.0, 1.0),)


@pytest.mark.parametrize(
    ("train", "val", "settings", "message"),
    [
        ([0, 1], [0, 2, 3], {}, "data.val: val1 has the label 2, which is out of range. Allowed: 0 to 1, because "
         "the highest label in train is 1."),
        ([0, -1, 1, -2], [0], {}, "data.train: train1 has the label -1, which is out of range. Allowed: 0 to 1"),
        ([-3], [-3], {}, "data.train: train0 has the label -3, which is out of range. Allowed: whole numbers from 0."),
        ([[0, 1], [1, 5]], [0], {"classes": ("a", "b")}, "data.train: train1 has the label 5, which is out of range. "
         "Allowed: 0 to 1, because 2 classes have names."),
        ([1, 2], [1], {"classes": ("a", "b")}, "0 to 1, because 2 classes have names. If labels begin at 1, "
         "set data.label_offset=1."),
        ([0, 1], [1], {"offset": 1}, "data.train: train0 has the label 0, which is out of range. Allowed: 1 to 1, "
         "because the highest label in train is 1 (data.label_offset=1)."),
        ([0, 2**30], [0], {}, "data.train: train1 has the label 1073741824, which is too large. "
         "Use labels below 1,000,000, or set data.classes=FILE."),
        ([[0, 1], 10_000], [0], {}, "which is too large. Use labels below 10,000, or set data.classes=FILE."),
        ([0, 1.5], [0], {}, "data.train: train1 has the label 1.5. Use whole numbers."),
        ([float("inf"), 0.0], [0], {}, "data.train: train0 has the label inf. Use whole numbers."),
        (["cat", "dog"], ["dog", "dgo"], {}, "data.val: val1 has the label 'dgo', which is unknown. Did you mean "
         "'dog' instead of 'dgo'? Known: cat, dog."),
        (["cat", "dog"], ["dgo", "caat", "x"], {}, "data.val: val0 has the label 'dgo', which is unknown. Did you "
         "mean 'dog' instead of 'dgo'? Did you mean 'cat' instead of 'caat'? Known: cat, dog.\n"
         "data.val: val1 has the label 'caat'.\ndata.val: val2 has the label 'x'."),
        (["cat"], ["x"] * 1007, {}, "data.val: val4 has the label 'x'.\n... and 1,002 more."),
        ([0, "cat"], [0], {}, "train1 has the label 'cat'"),
        (["cat"], [0], {}, "data: train0 has the label 'cat', and val0 has the label 0. Use either numbers or names"),
        ([0, []], [0], {}, "data.train: train1 has no label. Give each image one label, or set data.multilabel=true."),
        ([0, [0, 1], []], [0], {"task": "classify"}, "data.train: train1 has 2 labels (2 images have none"),
        ([[], []], [0], {"task": "multilabel"}, "data.train: neither train0 nor any other image has a label."),
        ([0], [], {}, "data.val has no images."),
    ],
)  # fmt: skip
def test_a_mistake_names_the_first_image(
    train: list[Any], val: list[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        understand(train, val, **settings)
    assert message in str(caught.value)
