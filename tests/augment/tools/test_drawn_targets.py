"""Masks, boxes and points on images (augment/drawing/target_overlays.py)."""

import numpy as np

from augment.drawing.target_overlays import LEFT, MIDDLE, RIGHT, Drawing, color_of

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
