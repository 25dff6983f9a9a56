"""Bar charts: a title fits above them, however long it is."""

import pytest

from augment.drawing.bars import draw_bars
from augment.drawing.style import arrange
from augment.support.timing import Result, Timing

ROWS = [Result("a", "this project", (Timing(1000, 1.0, 1.0),)), Result("b", "a loader of a long name", left_out="no")]


@pytest.mark.parametrize("names", [1, 4, 12])
def test_a_title_stays_within_the_figure(names: int) -> None:
    headline = ", ".join(["resnet18 fed with a recipe at 128 px"] * names)
    figure = draw_bars(ROWS, headline, lambda _: "")
    arrange(figure)
    title = figure.get_suptitle()
    assert " ".join(title.split("\n")) == headline
    (drawn,) = (text for text in figure.texts if text.get_text() == title)
    box = drawn.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().y1 < box.y0
