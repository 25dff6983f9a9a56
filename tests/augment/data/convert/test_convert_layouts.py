"""What `convert` makes of images that DALI does not decode, or decodes otherwise than Pillow."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from image_formats import MATRIX, levels
from PIL import Image

from augment.data.conversion import take_foreign
from augment.data.dataset import Dataset, Split
from augment.data.images import as_jpeg, read_encoded, to_rgb
from augment.support.errors import UserError


def dataset(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.chdir(tmp_path)  # where verdicts are cached
    (tmp_path / "image").write_bytes(MATRIX[name])
    split = Split((tmp_path / "image",), (0,))
    return Dataset(("a",), split, split)


@pytest.mark.parametrize("name", ["16 False.bmp", "gray 2 1.tif", "gray 4 1.tif", "5 100.pnm", "gif"])
def test_what_only_pillow_decodes_becomes_jpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found, count = take_foreign(dataset(tmp_path, name, monkeypatch), name, quality=90, skip_bad=False)
    assert count == 1
    with Image.open(BytesIO(read_encoded(found.train.files[0]))) as image:
        gray = np.asarray(image.convert("L"), np.float32)
    assert abs(gray.mean() - levels(8, 1).mean()) < 45  # not black, and not white


@pytest.mark.parametrize("name", ["cmyk_without_adobe.jpg", "premultiplied 4.tif", "sample 2 8 1.tif"])
def test_what_programs_decode_differently_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        take_foreign(dataset(tmp_path, name, monkeypatch), name, quality=90, skip_bad=False)


def test_a_tiff_of_12_bits_is_scaled() -> None:
    with Image.open(BytesIO(MATRIX["gray 12 1.tif"])) as image:
        (jpeg,) = [as_jpeg(to_rgb(image), 95)]
    assert np.abs(np.asarray(Image.open(BytesIO(jpeg)).convert("L"), np.float32) - levels(8, 1)[..., 0]).max() < 4
