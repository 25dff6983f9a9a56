"""The comparison of fused steps with steps run one by one."""

import numpy as np
from PIL import Image

from augment.tools.fusion import kept_detail, main


def test_sharp_images_lose_detail_with_each_step(tmp_path):
    # Noise, the sharpest image there is.
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert kept_detail([tmp_path / "noise.png"], 1) == 1
    assert kept_detail([tmp_path / "noise.png"], 8) < 0.6


def test_the_command_writes_the_figure(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--photos", str(photos[0].parent)]) == 0
    assert (tmp_path / "outputs" / "fusion.png").stat().st_size > 10_000
