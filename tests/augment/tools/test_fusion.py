"""The comparison of fused steps with steps run one by one."""

import numpy as np
import pytest
from PIL import Image

from augment.tools.fusion import always_inside, compare, difference, main, transform


def test_difference_counts_only_the_selected_pixels():
    one, other = np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)
    other[0, 0], other[0, 3] = 200, 8
    where = np.ones((2, 4, 4), dtype=bool)
    where[:, 0] = False
    assert difference(one, other, where).tolist() == [pytest.approx(8 / 3), 0]


def test_more_steps_leave_fewer_pixels_inside():
    few, many = (always_inside(steps, 5).mean(axis=(1, 2)) for steps in (1, 4))
    assert (many <= few).all()
    assert 0.2 < many.min() < many.max() < 1


def test_one_step_is_identical_either_way_but_two_are_not(photos):
    assert (transform(photos, 1, fuse=True) == transform(photos, 1, fuse=False)).all()
    assert (transform(photos, 2, fuse=True) != transform(photos, 2, fuse=False)).any()


def test_smooth_images_agree_and_sharp_ones_lose_detail(tmp_path):
    # Noise, the sharpest image there is.
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    one, *_, eight = compare([tmp_path / "noise.png"], tmp_path)
    assert one.smooth.max() == one.sharp.max() == 0
    assert one.contrast == 1
    assert eight.smooth.mean() < eight.sharp.mean()
    assert eight.contrast < 0.6


def test_the_command_writes_the_figure(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--photos", str(photos[0].parent)]) == 0
    assert (tmp_path / "outputs" / "fusion.png").stat().st_size > 10_000
