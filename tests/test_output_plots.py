"""Figures of labels and numbers: names that people gave are drawn as they are."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer.output_plots import plot_labels, plot_scatter
from trainer.outputs import LabelScore


@pytest.mark.parametrize("name", ["年齢", "$x^$", "broken \udcff name"])
def test_names_are_no_formulas_and_have_their_characters(name: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).random((20, 2), np.float32)
    plot_scatter(numbers, numbers + 1, [name, "age"], tmp_path / "scatter.png")
    plot_labels([LabelScore(name, 3, 0.5, 0.5, 0.5), LabelScore("b", 0, 0.0, 0.5, 0.0)], tmp_path / "labels.png")
    for file in ("scatter.png", "labels.png"):
        with Image.open(tmp_path / file) as figure:
            assert np.asarray(figure.convert("L")).std() > 10
