"""Outlines of objects: polygons and run-length codes."""

import tracemalloc

import numpy as np
import pytest
from matplotlib.path import Path as Outline

from augment.data.formats.polygons import Regions, read_polygons, read_runs


def drawn(shape: object, height: int, width: int) -> np.ndarray:
    return Regions("", height, width, (shape,), (1,)).read()  # type: ignore[arg-type]


def test_runs_are_those_of_pycocotools() -> None:
    expected = np.zeros((40, 50), np.uint8)
    expected[5:30, 7:45] = 1
    expected[10:12, :20] = 0
    counts = "m852==CC==CC==CC==CC==CC==CC==CC==CC==CC==CC==CC==CC==7000000000000000000000000000000000000000000000000S6"
    np.testing.assert_array_equal(drawn(read_runs({"size": [40, 50], "counts": counts})[0], 40, 50), expected)
    edges = np.flatnonzero(np.diff(expected.T.ravel(), prepend=0)).tolist()
    plain = np.diff([0, *edges, expected.size]).tolist()
    np.testing.assert_array_equal(drawn(read_runs({"size": [40, 50], "counts": plain})[0], 40, 50), expected)


def test_a_pixel_is_in_a_polygon_if_its_center_is() -> None:
    box = drawn(read_polygons([[2, 1, 5, 1, 5, 4, 2, 4]]), 6, 8)
    assert (np.argwhere(box).min(axis=0).tolist(), np.argwhere(box).max(axis=0).tolist()) == ([1, 2], [3, 4])
    rng = np.random.default_rng(0)
    centers = np.stack(np.meshgrid(np.arange(40) + 0.5, np.arange(30) + 0.5), -1).reshape(-1, 2)
    for _ in range(20):
        angles = np.sort(rng.random(9)) * 2 * np.pi
        radii = rng.uniform(5, 30, 9)  # so that some points are outside
        points = np.stack([20 + radii * np.cos(angles), 15 + radii * np.sin(angles)], 1)
        inside = Outline(points).contains_points(centers).reshape(30, 40)
        np.testing.assert_array_equal(drawn(read_polygons([points.ravel()]), 30, 40) > 0, inside)


def test_the_parts_of_an_object_are_drawn_together() -> None:
    parts = [[2, 1, 7, 1, 7, 11, 2, 11], [20, 3, 25, 3, 25, 19, 21, 19], [5, 8, 22, 9, 5, 12]]
    whole = drawn(read_polygons(parts), 20, 30) > 0
    np.testing.assert_array_equal(whole, sum(drawn(read_polygons([part]), 20, 30) for part in parts) > 0)


def test_overlapping_parts_and_zigzag_edges_count_as_covered_pixels() -> None:
    def covered(*polygons: list[int]) -> int:
        return Regions("", 20, 30, (read_polygons(polygons),), (1,)).covered()

    square, zigzag = [2, 1, 7, 1, 7, 11, 2, 11], [0, 0, 1, 20] * 50
    assert covered(square) == 50
    assert covered(square, [20, 0, 25, 0, 25, 1]) == 23 * 11
    assert covered(*[square] * 10) == 500
    assert covered(zigzag) == 20 * 100


def test_smaller_objects_are_in_front_of_larger_ones() -> None:
    large, small = ([0, 0, 9, 0, 9, 9, 0, 9], [2, 2, 4, 2, 4, 4, 2, 4])
    shapes = (read_polygons([small]), read_polygons([large]))
    found = Regions("", 9, 9, shapes, (1, 2)).read()
    assert np.count_nonzero(found == 1) == 4
    assert np.count_nonzero(found == 2) == 77


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        ([40, 50], [2**63 - 1, 2**63 - 1, 2 + 2000]),  # whose sum in 64 bits is 2,000
        ([10**9, 10**9], [10**18]),
        ([-40, -50], [2000]),
    ],
)
def test_runs_that_do_not_fit_an_image_are_rejected(size: list[int], counts: list[int]) -> None:
    with pytest.raises(ValueError, match="size"):
        read_runs({"size": size, "counts": counts})


def test_the_memory_of_a_polygon_is_limited() -> None:
    turns = np.arange(40_000)
    points = np.stack([500 + 400 * np.cos(turns), 500 + 400 * np.sin(1.3 * turns)], 1)
    tracemalloc.start()
    try:
        drawn(read_polygons([points.ravel()]), 1000, 1000)
        assert tracemalloc.get_traced_memory()[1] < 600e6
    finally:
        tracemalloc.stop()
