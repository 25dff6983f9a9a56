"""Lists that could be misinterpreted."""

from pathlib import Path

import pytest

from augment.data.dataset import Dataset
from augment.data.formats.filelist import Lines, read_list
from augment.data.targets.interpretation import make_list_dataset
from augment.data.targets.kind import known_kinds
from augment.data.targets.names import TargetOptions
from augment.support.errors import UserError


def write(folder: Path, name: str, rows: list[str], targets: tuple[str, ...] = (), label: str | None = None) -> Lines:
    file = folder / name
    file.write_text("".join(f"{row}\n" for row in rows))
    return read_list("data.train", file, image=None, label=label, targets=targets)


def understand(train: Lines, val: Lines, *, task: str | None, classes: tuple[str, ...] | None) -> Dataset:
    images = [[Path(line.path) for line in lines.lines] for lines in (train, val)]
    return make_list_dataset(
        (train, val), images, TargetOptions(known_kinds().get(task or ""), classes, names=train.columns)
    )


def numbers(*labels: str) -> list[str]:
    return ["path\tage", *(f"{i}.png\t{label}" for i, label in enumerate(labels))]


@pytest.mark.parametrize(
    ("labels", "line", "message"),
    [
        (("1.5", "2.0", "nan", "3.5", ".25"), 4, "'nan' is not a number. Allowed: numbers with a point"),
        (("1.5", "1,5", "3.5", ".25", "2.5"), 3, "'1,5' is not a number. Allowed: numbers "
         "with a point, as 1.5; or data.task=classify if these are names."),
        (("1,5", "0,25", "-2,75"), 2, "'1,5' is not a number. Allowed: numbers"),
        (("1,5", "2,5", "1,5"), 2, "'1,5' is not a number. Allowed: numbers"),
        (("1.5", "2.5", "3.5", "a", "b", "c"), 5, "'a' is not a number. Allowed: numbers with a point, as 1.5"),
    ],
)  # fmt: skip
def test_a_typing_error_among_numbers_is_refused(
    labels: tuple[str, ...], line: int, message: str, tmp_path: Path
) -> None:
    lines, val = write(tmp_path, "a.tsv", numbers(*labels)), write(tmp_path, "b.tsv", numbers("0.5"))
    with pytest.raises(UserError) as raised:
        understand(lines, val, task=None, classes=None)
    assert str(raised.value).startswith(f"data.train: line {line} of {tmp_path}/a.tsv: {message}")
    assert understand(lines, lines, task="classify", classes=None).classes == tuple(sorted(set(labels)))


def test_a_guessed_column_that_differs_in_nearly_every_line_is_no_class(tmp_path: Path) -> None:
    rows = ["path,age", *(f"{i}.png,{i % 19}" for i in range(20))]
    lines = write(tmp_path, "a.csv", rows)
    with pytest.raises(UserError, match=r"has no column 'label', and 'age' differs in nearly every line\. Allowed:"):
        understand(lines, lines, task=None, classes=None)
    for chosen, task in ((write(tmp_path, "a.csv", rows, label="age"), None), (lines, "classify")):
        assert len(understand(chosen, chosen, task=task, classes=None).classes) == 19
    few = write(tmp_path, "few.csv", rows[:8])
    assert len(understand(few, few, task=None, classes=None).classes) == 7
