"""Lists that could be misinterpreted."""

from pathlib import Path

import pytest

from augment.data.dataset import Dataset
from augment.data.formats.filelist import Lines, read_image_list
from augment.data.targets.class_names import TargetOptions
from augment.data.targets.interpretation import make_list_dataset
from augment.support.errors import UserError


def write(folder: Path, name: str, rows: list[str], targets: tuple[str, ...] = (), label: str | None = None) -> Lines:
    file = folder / name
    file.write_text("".join(f"{row}\n" for row in rows))
    return read_image_list("data.train", file, image=None, label=label, targets=targets)


def understand(train: Lines, val: Lines, *, task: str | None, classes: tuple[str, ...] | None) -> Dataset:
    images = [[Path(line.path) for line in lines.lines] for lines in (train, val)]
    return make_list_dataset((train, val), images, TargetOptions(task or "", classes, names=train.columns))


def numbers(*labels: str) -> list[str]:
    return ["path\tage", *(f"{i}.png\t{label}" for i, label in enumerate(labels))]


@pytest.mark.parametrize(
    ("labels", "line", "message"),
    [
        (("1.5", "2.0", "nan", "3.5", ".25"), 2, "0.png has the label 1.5, and line 4 of "),
        (("1.5", "1,5", "3.5", ".25", "2.5"), 3, "'1,5' is not a number. Write a "
         "decimal point, or set data.task=classify if it is a name."),
        (("1,5", "0,25", "-2,75"), 2, "'1,5' is not a number. Write a decimal point"),
        (("1,5", "2,5", "1,5"), 2, "'1,5' is not a number. Write a decimal point"),
        (("1.5", "2.5", "3.5", "a", "b", "c"), 2, "0.png has the label 1.5, and line 5 of "),
    ],
)  # fmt: skip
def test_a_typing_error_among_numbers_is_rejected(
    labels: tuple[str, ...], line: int, message: str, tmp_path: Path
) -> None:
    lines, val = write(tmp_path, "a.tsv", numbers(*labels)), write(tmp_path, "b.tsv", numbers("0.5"))
    with pytest.raises(UserError) as raised:
        understand(lines, val, task=None, classes=None)
    assert str(raised.value).startswith(f"data.train: line {line} of {tmp_path}/a.tsv: {message}")
    commas = sum("," in label for label in labels)  # each has a line of its own in the error
    assert str(raised.value).count("\n") == max(0, commas - 1)
    assert understand(lines, lines, task="classify", classes=None).classes == tuple(sorted(set(labels)))
