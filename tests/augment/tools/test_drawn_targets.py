"""Masks, boxes and points on images (augment/drawing/target_overlays.py)."""

import numpy as np

from augment.drawing.target_overlays import LEFT, MIDDLE, RIGHT, Drawing, color_of, with_legend

GRAY = np.full((40, 60, 3), 128, np.uint8)


def changed(pixels: np.ndarray) -> np.ndarray:
    return (pixels != 128).any(axis=-1)


def test_a_box_covers_the_pixels_between_its_edges():
    drawn = changed(Drawing(GRAY).boxes(np.array([[10, 5, 30, 25]]), [1]).pixels)
    rows, columns = np.flatnonzero(drawn.any(axis=1)), np.flatnonzero(drawn.any(axis=0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (4, 25, 9, 30)  # with a dark pixel around it
    whole = Drawing(GRAY).boxes(np.array([[0, 0, 60, 40]]), [1]).pixels
    for edge in (whole[0], whole[-1], whole[:, 0], whole[:, -1]):
        assert (edge == color_of(1)).all()


def test_drawings_of_other_scales_show_the_same_place():
    box = np.array([[10, 5, 30, 25]])
    twice = changed(Drawing(GRAY, 2).boxes(box, [1]).pixels)
    assert twice.shape == (80, 120)
    assert (np.flatnonzero(twice.any(axis=0))[[0, -1]] == (19, 60)).all()
    point = Drawing(GRAY, 3).points(np.array([[0.0, 10.0, 2.0]])).pixels
    assert (point[31, 1] == MIDDLE).all()  # the middle of the pixel that is three times as large
    assert Drawing(GRAY, 0.5).mask(np.ones((40, 60), np.int64)).pixels.shape == (20, 30, 3)


def test_masks_leave_the_background_and_mark_what_does_not_count():
    labels = np.zeros((40, 60), np.int64)
    labels[10:30, 10:30], labels[:, 50:] = 1, 255
    drawn = Drawing(GRAY).mask(labels, ["background", ""], ignore=255).pixels
    assert (changed(drawn) == (labels > 0)).all()
    assert (drawn[labels == 255].max(axis=0) == 255).all()
    assert (drawn[11, 15] != drawn[20, 20]).any()  # the outline
    assert changed(Drawing(GRAY).mask(labels, ["sky", ""], ignore=255).pixels).all()


def test_left_and_right_points_differ_and_hidden_ones_are_rings():
    points = np.array([[10, 10, 2], [30, 10, 2], [20, 30, 1], [50, 30, 0]], np.float32)
    drawn = Drawing(GRAY).points(points, [(0, 1)]).pixels
    assert (drawn[10, 10] == LEFT).all()
    assert (drawn[10, 30] == RIGHT).all()
    assert (drawn[30, 20] == 0).all()
    assert (drawn[30, 23] == MIDDLE).all()
    assert (drawn[25:35, 45:55] == 128).all()


def test_points_outside_the_image_have_no_name():
    outside = [[-20, 10, 2], [200, 10, 2], [30, -20, 2], [30, 60, 2]]
    points, names = np.array([*outside, [30, 20, 2]], np.float32), ["a", "b", "c", "d", "e"]
    assert (Drawing(GRAY).points(points, (), names).pixels == Drawing(GRAY).points(points[4:], (), ["e"]).pixels).all()


def test_a_legend_is_below_the_image_and_has_all_entries():
    pixels = with_legend(GRAY, [(1, "cat"), (2, "dog"), (None, "none")])
    assert pixels.shape[1] == 320
    assert (pixels[:40, :60] == GRAY).all()
    strip = pixels[40:]
    for label in (1, 2):
        assert (strip == color_of(label)).all(axis=2).sum() == 11 * 11
    assert with_legend(GRAY, []) is GRAY
    many = with_legend(GRAY, [(label, f"class {label}") for label in range(1, 101)])
    assert many.shape[0] > 20 * len(strip)
    squares = [(many[40:] == color_of(label)).all(axis=2).sum() for label in range(1, 22)]
    assert sum(squares) >= 100 * 11 * 11
    assert with_legend(GRAY, [(1, "long " * 100)]).shape == pixels.shape


def test_a_readable_drawing_enlarges_tiny_images_and_the_lines_of_large_ones():
    tiny = Drawing.readable(GRAY)
    assert (tiny.pixels.shape, tiny.weight) == ((240, 360, 3), 1)
    large = Drawing.readable(np.full((20, 3000, 3), 128, np.uint8))
    assert (large.pixels.shape, large.weight) == ((20, 3000, 3), 3)
    assert max(Drawing.readable(np.zeros((9, 5000, 3), np.uint8)).pixels.shape) == 4096
    assert Drawing.readable(GRAY[:1, :1]).pixels.shape == (320, 320, 3)


def test_texts_without_a_free_place_are_left_out():
    box = np.array([[10, 15, 20, 25]])
    once = changed(Drawing(GRAY).texts(box, [1], ["cat"]).pixels).sum()
    many = changed(Drawing(GRAY).texts(np.tile(box, (50, 1)), [1] * 50, ["cat"] * 50).pixels).sum()
    assert 0 < once < many <= 5 * once
