"""Text in figures: any script, no formulas, and lines that fit."""

from pathlib import Path

import pytest
from figures import LONG, assert_whole, confusion, figure_of, image_files, read_png

from augment.drawing import text as lettering
from trainer.figures.outputs import plot_batch, plot_confusion

TRICKY = ["鳥", "🐦 bird", "$10 bill$", "broken \udcff name", "two\nlines", "père & fils", LONG, ""]


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    plot_confusion(confusion(len(TRICKY)), TRICKY, tmp_path / "confusion.png")
    assert_whole(read_png(tmp_path / "confusion.png"))
    plot_batch(image_files(len(TRICKY), 32, 32), TRICKY, tmp_path / "batch.png", title="鳥 $x$")
    assert_whole(read_png(tmp_path / "batch.png"))


def test_characters_without_a_glyph_stay_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lettering, "_characters", lambda: frozenset(map(ord, "abc \\é\n")))
    assert lettering.drawable("abc é") == "abc é"
    assert lettering.drawable("鳥 a") == "\\u9ce5 a"
    assert lettering.drawable("a\nb\udcff") == "a\\nb\\udcff"


def test_dollar_signs_are_not_read_as_formulas() -> None:
    axes = figure_of(plot_confusion, confusion(2), ["$x$", "y"]).axes[0]
    assert not any(label.get_parse_math() for label in [*axes.get_xticklabels(), *axes.get_yticklabels()])
    figure = figure_of(plot_batch, image_files(1, 8, 8), ["$x$"], title="$y$")
    assert not any(text.get_parse_math() for text in figure.texts)


def test_long_text_keeps_its_ends() -> None:
    short = lettering.shorten(LONG, 200, 9)
    assert lettering.text_width(short, 9) <= 200 < lettering.text_width(LONG, 9)
    start, end = short.split("…")
    assert LONG.startswith(start)
    assert LONG.endswith(end)
    assert abs(len(start) - len(end)) <= 1
    assert lettering.text_width(LONG[: len(start) + 1] + "…" + LONG[-len(end) - 1 :], 9) > 200
    assert lettering.shorten("church", 200, 9) == "church"
    assert lettering.shorten(LONG, 0, 9) == "…"
