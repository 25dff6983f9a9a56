"""Arrays of decoded images, and error messages about other arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.data.images import open_image
from augment.data.sources import parse_data
from augment.support.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)


def load(folder: Path, images: Any = PIXELS, targets: Any = (0, 1, 0), /, **settings: Any) -> Any:
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", np.array(targets))
    given = {"train": "x.npy", "train_targets": "y.npy", "val": "x.npy", "val_targets": "y.npy"}
    files = {name: str(folder / file) for name, file in given.items()}
    return parse_data({"source": "numpy", **files, **settings}).load()


@pytest.mark.parametrize("order", ["C", "F"])
def test_images_are_those_of_the_array(order: Any, tmp_path: Path) -> None:
    dataset = load(tmp_path, np.array(PIXELS, order=order))
    assert dataset.classes == ("0", "1")
    assert dataset.train.targets == (0, 1, 0)
    assert "x.npy is also data.train" in dataset.notices[0]
    for ref, pixels in zip(dataset.train.files, PIXELS, strict=True):
        np.testing.assert_array_equal(ref.read_pixels(), pixels)
        with open_image(ref) as image:
            np.testing.assert_array_equal(np.asarray(image), pixels)
    assert [ref.name for ref in dataset.val.files] == ["x.npy[0]", "x.npy[1]", "x.npy[2]"]


@pytest.mark.parametrize(
    ("images", "targets", "message"),
    [
        (PIXELS[..., 0], (0, 1, 0), r"data\.train=.*x\.npy is \(3, 5, 4\) uint8"),
        (PIXELS.astype(np.float64), (0, 1, 0), r"is \(3, 5, 4, 3\) float64"),
        (np.zeros((3, 3, 32, 32), np.uint8), (0, 1, 0), r"is \(3, 3, 32, 32\) uint8\. Save it with its channels last"),
        (np.zeros((3, 1, 28, 28), np.uint8), (0, 1, 0), r"channels last: numpy\.moveaxis\(images, 1, 3\)\.$"),
        (PIXELS[:0], (0, 1, 0), r"is \(0, 5, 4, 3\) uint8"),
        (PIXELS, (0, 1), r"data\.train_targets=.*y\.npy is \(2,\) int64.*\(3,\)"),
        (PIXELS, np.zeros((3, 0)), r"y\.npy is \(3, 0\) float64.*\(3,\) or \(3, K\)"),
        (PIXELS, np.zeros((3, 1, 1)), r"y\.npy is \(3, 1, 1\) float64"),
        (PIXELS, np.array(["a", "b", "c"]), r"y\.npy is \(3,\) <U1"),
    ],
)
def test_arrays_of_other_shapes_or_types_are_rejected(images: Any, targets: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, images, targets)


def test_a_replaced_array_is_read_again(tmp_path: Path) -> None:
    old = load(tmp_path).train.files[1]
    np.testing.assert_array_equal(old.read_pixels(), PIXELS[1])
    turned = np.array(PIXELS[::-1])
    new = load(tmp_path, turned[:2], (0, 1)).train.files[1]
    np.testing.assert_array_equal(new.read_pixels(), turned[1])
    with pytest.raises(OSError, match="changed"):
        old.read_pixels()


def test_damaged_and_other_files_are_rejected(tmp_path: Path) -> None:
    load(tmp_path)
    settings = {"train_targets": str(tmp_path / "y.npy"), "val": str(tmp_path / "x.npy")}
    settings |= {"source": "numpy", "val_targets": str(tmp_path / "y.npy")}
    np.savez(tmp_path / "z.npz", PIXELS)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:200])
    (tmp_path / "text.npy").write_text("no array")
    for name, message in (
        ("cut.npy", r"cannot be read \(mmap length"),
        ("text.npy", r"cannot be read \(the magic string"),
        ("z.npz", r"cannot be read \(the magic string"),
    ):
        with pytest.raises(UserError, match=message):
            parse_data({**settings, "train": str(tmp_path / name)}).load()


def test_rows_of_numbers_and_of_labels(tmp_path: Path) -> None:
    ages = load(tmp_path, PIXELS, [[20.5, 1], [30, 2], [40, 3]], targets=["age", "height"])
    assert (ages.task, ages.classes) == ("regress", ("age", "height"))
    assert ages.train.targets == ((20.5, 1.0), (30.0, 2.0), (40.0, 3.0))
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    flags = load(tmp_path, PIXELS, [[0, 1], [1, 1], [0, 0]], classes=str(tmp_path / "names.txt"), multilabel=True)
    assert (flags.task, flags.classes) == ("multilabel", ("cat", "dog"))
    assert flags.val.targets == ((0.0, 1.0), (1.0, 1.0), (0.0, 0.0))
    with pytest.raises(UserError, match=r"^data\.task=regress contradicts data\.multilabel=true"):
        load(tmp_path, PIXELS, (0, 1, 0), task="regress", multilabel=True)


@pytest.mark.parametrize(
    "header",
    ["((((", "{[]: 1}", "  a\n b\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (True, 5, 4, 3)}", "'" * 3],
)
def test_headers_that_numpy_never_writes(header: str, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", [0, 1, 0])
    written = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(200)
    (tmp_path / "x.npy").write_bytes(written)
    given = {"train": str(tmp_path / "x.npy"), "train_targets": str(tmp_path / "y.npy"), "val_fraction": 0.5}
    with pytest.raises(UserError, match=r"cannot be read .* Use a \.npy file of "):
        parse_data({"source": "numpy", **given}).load()
