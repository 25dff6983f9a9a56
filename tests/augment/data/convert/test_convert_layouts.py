"""What `convert` makes of images that DALI does not decode, or decodes otherwise than Pillow, and of other pixels."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from image_bytes import encoded, with_scans
from image_formats import MATRIX, levels
from PIL import Image
from raster_bytes import dicom, npy, npz, pixels, tiff

from augment.data import image_faults
from augment.data.conversion import convert_foreign, reading_settings
from augment.data.dataset import NO_VAL, Dataset, Split
from augment.data.images import as_jpeg, read_encoded, to_rgb
from augment.data.sources import load_dataset, parse_data
from augment.support.errors import UserError
from augment.tools.convert import main


def dataset(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.chdir(tmp_path)  # where verdicts are cached
    (tmp_path / "image").write_bytes(MATRIX[name])
    split = Split((tmp_path / "image",), (0,))
    return Dataset(("a",), split, split)


@pytest.mark.parametrize("name", ["16 False.bmp", "gray 2 1.tif", "gray 4 1.tif", "5 100.pnm", "gif"])
def test_what_only_pillow_decodes_becomes_jpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found, count = convert_foreign(dataset(tmp_path, name, monkeypatch), name, quality=90, skip_bad=False)
    assert count == 1
    with Image.open(BytesIO(read_encoded(found.train.files[0]))) as image:
        gray = np.asarray(image.convert("L"), np.float32)
    assert abs(gray.mean() - levels(8, 1).mean()) < 45  # not black, and not white


@pytest.mark.parametrize("name", ["cmyk_without_adobe.jpg", "premultiplied 4.tif", "sample 2 8 1.tif"])
def test_what_programs_decode_differently_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        convert_foreign(dataset(tmp_path, name, monkeypatch), name, quality=90, skip_bad=False)


def test_a_jpeg_that_takes_minutes_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_faults, "MAX_PIXELS", 60 * 40)
    monkeypatch.setitem(MATRIX, "scans", with_scans(encoded("JPEG", progressive=True), 20))
    with pytest.raises(UserError, match="has 30 scans"):
        convert_foreign(dataset(tmp_path, "scans", monkeypatch), "scans", quality=90, skip_bad=False)


def test_a_tiff_of_12_bits_is_scaled() -> None:
    with Image.open(BytesIO(MATRIX["gray 12 1.tif"])) as image:
        (jpeg,) = [as_jpeg(to_rgb(image), 95)]
    assert np.abs(np.asarray(Image.open(BytesIO(jpeg)).convert("L"), np.float32) - levels(8, 1)[..., 0]).max() < 4


@pytest.mark.parametrize("to", ["folder", "webdataset"])
@pytest.mark.parametrize("name", ["tif", "npy", "npz", "dcm", "numpy"])
def test_channels_and_precision_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, to: str) -> None:
    """Files are copied. Arrays become `.npy` files, with their values for no data."""
    monkeypatch.chdir(tmp_path)
    images = [pixels(1 if name == "dcm" else 5, seed=number) for number in range(4)]
    if name == "numpy":
        np.save("images.npy", images)
        np.save("classes.npy", [0, 1, 1, 0])
        given = [f"data.{split}{end}" for split in ("train", "val") for end in ("=images.npy", "_targets=classes.npy")]
    else:
        encode = {"tif": tiff, "npy": npy, "npz": npz, "dcm": lambda image: dicom(image[..., 0])}[name]
        for number, image in enumerate(images):
            for split in ("train", "val"):
                file = Path(f"{split}/{'abba'[number]}/{number}.{name}")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(encode(image))
        given = ["data.root=."]
    source = "numpy" if name == "numpy" else "folder"
    no_data = f"data.nodata={images[0][0, 0, 0]}"
    assert main([f"data={source}", *given, no_data, "--to", to, "--out", "out"]) == 0
    dataset = load_dataset(parse_data(reading_settings(Dataset(("a", "b"), NO_VAL, NO_VAL), to, Path("out"))))
    for split in (dataset.train, dataset.val):
        found = {file.read_pixels().tobytes(): target for file, target in zip(split.files, split.targets, strict=True)}
        assert found == {image.tobytes(): "abba".index(letter) for image, letter in zip(images, "abba", strict=True)}
