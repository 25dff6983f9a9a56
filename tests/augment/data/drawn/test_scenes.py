"""The drawn set with several labels per image."""

from collections import Counter

import numpy as np

from augment.data.generated.sample import draw_scene, labels_of
from augment.data.generated.shapes import THING_NAMES


def test_an_image_depends_only_on_its_split_and_index() -> None:
    first, again, other = (np.asarray(draw_scene(split, 3)) for split in ("train", "train", "val"))
    assert np.array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)
    assert first.dtype == np.uint8
    assert first.shape[2] == 3


def test_each_label_is_about_as_frequent() -> None:
    labels = [labels_of("train", index) for index in range(400)]
    assert all(len(set(found)) == len(found) for found in labels)
    assert set(map(len, labels)) == {1, 2, 3, 4}
    # 400 images of 2.5 labels of 10 in the mean: 100 each, standard deviation about 9.
    counts = Counter(name for found in labels for name in found)
    assert set(counts) == set(THING_NAMES)
    assert all(60 < count < 140 for count in counts.values())


def test_drawn_things_match_the_labels(monkeypatch) -> None:
    """The labels come from the same draws as the image."""
    from augment.data.generated import sample

    drawn: list[str] = []
    things = {name: (lambda rng, name=name: drawn.append(name) or []) for name in THING_NAMES}
    monkeypatch.setattr(sample, "THINGS", things)
    for index in range(5):
        drawn.clear()
        draw_scene("val", index)
        assert sorted(drawn) == list(labels_of("val", index))
