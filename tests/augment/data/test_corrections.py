"""Corrections of training labels: what they change, and one clear sentence for each mistake."""

from pathlib import Path
from time import process_time

import pytest

from augment.data.corrections import corrected, pinned
from augment.data.dataset import Dataset, Split
from augment.data.sources import parse_data
from augment.data.sources.loading import select
from augment.data.targets.regression import NUMBERS
from augment.support.errors import UserError

CLASSES = ("cat", "dog", "=owl")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dataset() -> Dataset:
    train = Split(tuple(Path(f"photos/train/{name}/{n}.jpg") for name in ("cat", "dog") for n in (1, 2)), (0, 0, 1, 1))
    return Dataset(CLASSES, train, Split((Path("photos/val/cat/1.jpg"), Path("photos/val/dog/9.jpg")), (0, 1)))


def apply(text: str | bytes, of: Dataset | None = None) -> Dataset:
    Path("c.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    given = of or dataset()
    return corrected(given, pinned("c.csv"), given)


def test_changes_and_drops_samples() -> None:
    rows = ["photos/train/cat/1.jpg,dog,", "photos/train/cat/2.jpg,,drop", "photos/train/dog/1.jpg,cat,keep"]
    found = apply("\n".join(["path,label,action", *rows]))
    assert [str(file) for file in found.train.files] == [
        f"photos/train/{name}.jpg" for name in ("cat/1", "dog/1", "dog/2")
    ]
    assert found.train.targets == (1, 1, 1)
    assert found.val == dataset().val
    assert found.notices == ("data.labels: changed the class of 1 image and dropped 1",)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfpath,label\r\nphotos/train/cat/1.jpg,'=owl\r\n",  # as spreadsheets and the page write it
        b"label,path\n=owl,photos/train/cat/1.jpg",
        b"path,label\n/moved/train/cat/1.jpg,=owl\n",
        b"path,label\nC:\\moved\\train\\cat\\1.jpg,=owl\n",
    ],
)
def test_accepts_common_encodings_and_a_moved_dataset(text: bytes) -> None:
    assert apply(text).train.targets == (2, 0, 1, 1)


def test_an_exact_path_is_preferred() -> None:
    given = Dataset(CLASSES, Split((Path("a/1.jpg"), Path("b/a/1.jpg")), (0, 0)))
    assert apply("path,label\na/1.jpg,dog\n", given).train.targets == (1, 0)


def test_images_in_the_current_folder() -> None:
    given = Dataset(CLASSES, Split((Path("1.jpg"), Path("2.jpg")), (0, 1)))
    assert apply("path,label\n1.jpg,dog\n", given).train.targets == (1, 1)


def test_images_of_both_splits_with_the_same_name() -> None:
    """As the code of data=own may have them."""
    files = Path("Cats[0]"), Path("Cats[1]")
    given = Dataset(CLASSES, Split(files, (0, 1)), Split(files, (0, 1)))
    found = apply("path,label\nCats[0],dog\n", given)
    assert (found.train.targets, found.val.targets) == ((1, 1), (0, 1))


def test_changes_sets_of_labels() -> None:
    train = Split(tuple(Path(f"a/{n}.jpg") for n in range(3)), ((1.0, 0.0), (1.0, 1.0), (0.0, 0.0)))
    found = apply("path,label\na/0.jpg,cat; dog\na/1.jpg,\n", Dataset(("cat", "dog"), train))
    assert found.train.targets == ((1.0, 1.0), (0.0, 0.0), (0.0, 0.0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r": c\.csv is empty\. Write a header"),
        ("path;label;action\nphotos/train/cat/1.jpg;dog;", "is path;label;action. .* separated by ','"),
        ("path,label\n", "no rows"),
        ("path,given_label\nphotos/train/cat/1.jpg,dog", "one column 'label'"),
        ("path,label\nphotos/train/cat/3.jpg,dog", "line 2: no training image is named"),
        ("path,label\nphotos/train/cat/1.jpg,dgo", "Did you mean 'dog'"),
        ("path,label\nphotos/train/cat/1.jpg,", "action drop"),
        ("path,label,action\nphotos/train/cat/1.jpg,,delete", "Allowed: keep, change, drop"),
        ("path,label\nphotos/train/cat/1.jpg,dog\nmoved/train/cat/1.jpg,dog", "line 3: .* also in a line above"),
        ("path,label\nphotos/val/dog/9.jpg,cat", "is a validation image"),
        ("path,label\nx/cat/1.jpg,dog", "matches 2 images"),
        ("path,label\nphotos/train/cat/1.jpg,dog\n".encode("utf-16"), "not UTF-8"),
        ("path,label,action\n" + "".join(f"photos/train/{n}.jpg,,drop\n" for n in ("cat/1", "cat/2", "dog/1", "dog/2")),
         "drops all"),
    ],
)  # fmt: skip
def test_answers_each_mistake(text: str | bytes, why: str) -> None:
    with pytest.raises(UserError, match=f"^data.labels.*{why}"):
        apply(text)


def test_reports_several_mistakes_at_once() -> None:
    rows = ["photos/train/cat/1.jpg,dgo,", "photos/train/cat/2.jpg,,delete", "x.jpg,cat,", "photos/train/dog/1.jpg,,"]
    with pytest.raises(UserError) as caught:
        apply("\n".join(["path,label,action", *rows]))
    found = [line.split(": ")[1:3] for line in str(caught.value).splitlines()]
    assert [where for where, _ in found] == [f"line {number}" for number in range(2, 6)]


def test_only_drops_other_targets() -> None:
    numbers = Dataset(("age",), Split((Path("a/1.jpg"), Path("a/2.jpg")), ((1.0,), (2.0,)), NUMBERS))
    assert len(apply("path,label,action\na/1.jpg,,drop", numbers).train) == 1
    with pytest.raises(UserError, match="cannot be changed"):
        apply("path,label\na/1.jpg,3", numbers)


def test_pins_the_content_and_rejects_another(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.labels: the file c\.csv does not exist"):
        parse_data({"source": "sample", "labels": "c.csv"})
    Path("c.csv").write_text("path,label\nphotos/train/cat/1.jpg,dog")
    source = parse_data({"source": "sample", "labels": "c.csv"})
    assert source.labels == pinned(str(source.labels)) == pinned("c.csv")
    assert select(source, dataset()).train.targets == (1, 0, 1, 1)
    Path("c.csv").write_text("path,label\nphotos/train/cat/1.jpg,=owl")
    with pytest.raises(UserError, match="its content has changed"):
        select(source, dataset())


@pytest.mark.parametrize(
    "split", [{"val_fraction": 0.3}, {"folds": 3, "fold": 0}, {"val_fraction": 0.2, "test_fraction": 0.2}]
)
def test_corrections_do_not_change_the_scored_images(split: dict[str, object]) -> None:
    train = Split(
        tuple(Path(f"photos/train/{'cat' if n < 10 else 'dog'}/{n}.jpg") for n in range(20)), (0,) * 10 + (1,) * 10
    )
    whole = Dataset(CLASSES, train)
    rows = [f"{file},{'' if n % 2 else 'dog'},{'drop' if n % 2 else ''}" for n, file in enumerate(train.files[:10])]
    Path("c.csv").write_text("\n".join(["path,label,action", *rows]))
    plain, source = (
        parse_data({"source": "sample", **split}),
        parse_data({"source": "sample", "labels": "c.csv", **split}),
    )
    before, after = select(plain, whole), select(source, whole)
    assert after.val == before.val
    assert set(after.train.files) < set(before.train.files)
    if source.test_fraction:
        assert select(source.with_test(), whole).val == select(plain.with_test(), whole).val


def test_many_images_with_the_same_name_are_found_quickly() -> None:
    files = tuple(Path(f"photos/{n}/rgb/0.jpg") for n in range(5000))
    given = Dataset(CLASSES, Split(files, (0,) * 5000), Split((), ()))
    begun = process_time()
    found = apply("path,label\n" + "".join(f"moved/{n}/rgb/0.jpg,dog\n" for n in range(5000)), given)
    assert found.train.targets == (1,) * 5000
    assert process_time() - begun < 8  # comparing each path with all pairs of images takes minutes
