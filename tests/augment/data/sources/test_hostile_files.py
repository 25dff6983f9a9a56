"""Lists, names and arrays that no one writes on purpose: a sentence each, and no reading without an end."""

import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from augment.cli.parser import readable_errors
from augment.data.convert.conversion import Options, convert
from augment.data.dataset import Dataset, Split
from augment.data.formats.filelist import read_list
from augment.data.sources import load_dataset, parse_data
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.jpg," + "x" * 140_000, "line 2 of t.csv: field larger than field limit"),
        ("path,label\na.jpg,a\nb.jpg,b\0c", "line 3 of t.csv has a NUL character in it"),
    ],
)
def test_strange_lists(text: str, message: str) -> None:
    Path("t.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_list("data.train", Path("t.csv"), image=None, label=None, targets=())


def test_a_path_of_any_length_is_missing() -> None:
    Path("t.csv").write_text(f"path,label\n{'p' * 100_000}.jpg,a\n")
    with pytest.raises(UserError, match=r"line 2 of t\.csv: there is no p+"):
        load_dataset(parse_data({"source": "filelist", "train": "t.csv", "val": "t.csv"}))


@pytest.mark.parametrize("key", ["train", "classes"])
def test_pipes_are_no_lists(key: str) -> None:
    os.mkfifo("pipe")
    Path("t.csv").write_text("path,label\na.jpg,a\n")
    given = {"source": "filelist", "train": "t.csv", "val": "t.csv", key: "pipe"}
    with pytest.raises(UserError, match="cannot be read: it is a named pipe"):
        parse_data(given).load()


def test_pipes_and_negative_shapes_are_no_arrays() -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 8, 8, 3), }".ljust(117) + b"\n"
    Path("negative.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(768))
    np.save("targets.npy", np.zeros(4, np.int64))
    os.mkfifo("pipe")
    for name, message in (("negative.npy", "must be positive"), ("pipe", "is a named pipe")):
        given = {"source": "numpy", "train": name, "val": name} | dict.fromkeys(
            ("train_targets", "val_targets"), "targets.npy"
        )
        with pytest.raises(UserError, match=message):
            parse_data(given).load()


def test_settings_are_not_endless() -> None:
    for value in ("p" * 100_000, "a\0b"):
        with pytest.raises(UserError, match="is not allowed"):
            parse_data({"source": "folder", "root": value})


def test_names_that_are_too_long_are_a_mistake_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), readable_errors():
        parse_data({"source": "folder", "root": "p" * 400}).load()
    assert capsys.readouterr().err.endswith("...: File name too long.\n")


def test_a_task_of_a_plugin_is_not_converted() -> None:
    split = Split((Path("a.jpg"),), (0,))
    dataset = replace(Dataset(("a",), split, split), task="segment")
    with pytest.raises(UserError, match=r"its task is segment\. Allowed with --to folder: classify"):
        convert(dataset, Path("out"), Options("folder"))


def test_a_label_of_thousands_of_digits_is_no_class() -> None:
    """Python converts none of more than 4,300."""
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (8, 8)).save(name)
    Path("t.csv").write_text(f"path,label\na.jpg,0\nb.jpg,{'9' * 5000}\n")
    with pytest.raises(UserError, match="is not the number of a class"):
        parse_data({"source": "filelist", "train": "t.csv", "val": "t.csv"}).load()
