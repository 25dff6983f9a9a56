"""The drawn set with ten channels of 16 bits: the same every time, and some classes differ only outside RGB."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from augment.data.dataset import check_dataset
from augment.data.generated import bands
from augment.data.generated.bands import BANDS, COVER_NAMES, RGB_BANDS, SPECTRA, draw_bands, generate_bands
from augment.data.sources import parse_data


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which sets of 30 and 20 images are drawn."""
    monkeypatch.setattr(bands, "TRAIN", 3)
    monkeypatch.setattr(bands, "VAL", 2)
    return tmp_path


def test_images_have_a_known_digest() -> None:
    """Raise `bands.VERSION` if it changes, because folders are used again."""
    digest = sha256()
    for name in COVER_NAMES:
        pixels, covers = draw_bands("train", name, 3)
        digest.update(pixels.astype("<u2").tobytes() + covers.tobytes())
    assert bands.VERSION == 1
    assert digest.hexdigest()[:16] == "fe280e8184b7662e"


def test_an_image_depends_only_on_its_split_class_and_index() -> None:
    first, again, other = (draw_bands(split, "snow", 7) for split in ("train", "train", "val"))
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[0], other[0])


def test_two_sources_read_the_same_images(small: Path) -> None:
    given = [parse_data({"source": name, "dir": str(small)}) for name in ("sample_bands", "sample_bands_masks")]
    classes, masks = (check_dataset(source.load(), "data") for source in given)
    assert (classes.task, masks.task, len(masks.train), len(masks.val)) == ("classify", "segment", 30, 20)
    assert list(classes.train.files) == list(masks.train.files)
    for file, label, mask in zip(classes.train.files, classes.train.targets, masks.train.targets, strict=True):
        pixels, covers = np.load(file), mask.read()
        assert (pixels.dtype, pixels.shape, covers.shape) == (np.uint16, (64, 64, 10), (64, 64))
        assert np.bincount(covers.ravel()).argmax() == label == COVER_NAMES.index(file.parent.name)
    assert given[0].rgb == RGB_BANDS


def test_six_classes_differ_only_outside_rgb() -> None:
    colors = {name: tuple(spectrum[band] for band in RGB_BANDS) for name, spectrum in SPECTRA.items()}
    assert len(set(SPECTRA.values())) == len(COVER_NAMES) == len(BANDS) == 10
    assert len(set(colors.values())) == 6  # vegetation and the two white covers count once
    assert len({colors[name] for name in ("broadleaf", "conifer", "crop", "meadow")}) == 1
    assert colors["snow"] == colors["cloud"]


def test_values_lie_in_the_range_of_the_source(small: Path) -> None:
    images = [np.load(file) for file in generate_bands(small).glob("*/*/*.npy")]
    low, high = np.percentile(images, [1, 99])
    assert 50 < low < 500
    assert 7000 < high < 10000
