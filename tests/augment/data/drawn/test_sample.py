"""The image set that the project draws itself: identical every time, complete or absent."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from augment.data.generated import sample
from augment.data.generated.sample import draw, generate_sample
from augment.data.generated.shapes import THING_NAMES, THINGS
from augment.support.errors import UserError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.jpg"))}


def test_an_image_does_not_depend_on_what_was_drawn_before() -> None:
    first = draw("fish", "train", 3)
    draw("car", "val", 0)
    np.random.default_rng().random()
    assert first.tobytes() == draw("fish", "train", 3).tobytes()


def test_layout_and_counts(tmp_path: Path) -> None:
    folder = generate_sample(tmp_path / "new" / "root", train_per_class=2, val_per_class=1)
    assert folder.parent == tmp_path / "new" / "root"
    expected = {f"train/{name}/{index:03d}.jpg" for name in THING_NAMES for index in range(2)}
    assert set(contents(folder)) == expected | {f"val/{name}/000.jpg" for name in THING_NAMES}
    assert {path.name for path in folder.iterdir()} == {"train", "val"}


def test_every_class_draws_a_different_thing() -> None:
    def silhouette(name: str) -> NDArray[np.float64]:
        """The mean of four things, (128, 128), each upright and white on black."""
        images = [Image.new("L", (128, 128)) for _ in range(4)]
        for seed, image in enumerate(images):
            for _, points in THINGS[name](np.random.default_rng(seed)):
                ImageDraw.Draw(image).polygon((50 * points + 64).ravel().tolist(), fill=255)
        return np.asarray(sum(np.asarray(image) / 255 for image in images)) / len(images)

    silhouettes = {name: silhouette(name) for name in THING_NAMES}
    for name, own in silhouettes.items():
        assert 0.05 < own.mean() < 0.6, name
    for one, other in combinations(THING_NAMES, 2):
        assert np.abs(silhouettes[one] - silhouettes[other]).mean() > 0.05, f"{one} looks like {other}"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_build_leaves_nothing_and_draws_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    drawn = []

    def break_off(name: str, split: str, index: int) -> Image.Image:
        drawn.append(name)
        if len(drawn) == 5:
            raise error
        return Image.new("RGB", (8, 8))

    monkeypatch.setattr(sample, "draw", break_off)
    with pytest.raises(error):
        generate_sample(tmp_path, train_per_class=100, val_per_class=100)
    assert list(tmp_path.iterdir()) == []
    assert len(drawn) < 2000


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/deeper/sample-v.*Not a directory"):
        generate_sample(tmp_path / "file" / "deeper")
