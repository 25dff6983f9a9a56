"""Paths in an array are what a tuple of paths is."""

from pathlib import Path

import numpy as np
import pytest

from augment.data.dataset import Split
from augment.data.images import Paths, image_keys, known_of, portable_name, portable_names, take_images

NAMES = ("a.jpg", "/a.jpg", "b/a.jpg", "/c/b/ü.jpg", "../a b.jpg", "d/\udcff.jpg", "e\n/f.jpg", "long/" * 40 + "g.jpg")


@pytest.mark.parametrize("names", [(), NAMES[:1], NAMES, (*NAMES, "nul\0inside.jpg")])
def test_paths_are_those_given(names: tuple[str, ...]) -> None:
    files = tuple(map(Path, names))
    paths, empty = Paths(files), tuple[Path, ...]()
    assert paths == files
    assert paths != (*files, Path("more"))
    assert tuple(paths) == files
    assert [paths[index] for index in range(len(paths))] == list(files)
    assert paths[1:-1] == files[1:-1]
    assert list(portable_names(paths)) == [*map(portable_name, files)]
    assert Split(files, (0,) * len(files)).files == files
    assert [isinstance(some, Paths) for some in (paths + paths, paths + empty, empty + paths, paths + files)] == [
        True
    ] * 4
    assert paths + files == files + files == files + paths
    indices = np.arange(len(files))[::-1]
    assert take_images(paths, indices) == take_images(files, indices) == files[::-1]


def test_mixed_images_stay_a_tuple() -> None:
    class Stored:
        name = "a"

    mixed = (Path("a.jpg"), Stored())
    assert Paths([Path("b.jpg")]) + mixed == (Path("b.jpg"), *mixed)
    assert mixed + Paths([Path("b.jpg")]) == (*mixed, Path("b.jpg"))
    assert known_of(mixed, {mixed[1]: 1}) == {1: 1}
    assert image_keys(mixed) == list(mixed)


def test_what_is_known_of_paths_is_found_by_their_index() -> None:
    paths = Paths(["a.jpg", "b.jpg", "a.jpg"])
    assert known_of(paths, {Path("a.jpg"): "x", Path("c.jpg"): "y", object(): "z"}) == {0: "x", 2: "x"}
