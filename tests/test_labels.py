"""Files of class names, and what is said of those that are none."""

from pathlib import Path

import pytest

from augment.errors import UserError
from augment.labels import label_dataset, read_names


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


def test_of_many_classes_only_the_nearest_are_listed() -> None:
    files = tuple(Path(f"{i}.jpg") for i in range(60))
    labels = [f"class {i:02}" for i in range(60)]
    with pytest.raises(UserError, match=r"^data\.val: 0\.jpg has the unknown class 'clas 07'. Did you mean") as error:
        label_dataset((files, labels), (files[:1], ["clas 07"]), None)
    assert 1 <= str(error.value).count("class ") < 10
