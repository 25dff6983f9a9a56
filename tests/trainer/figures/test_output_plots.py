"""Figures of labels and numbers: names are drawn literally."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer.figures.outputs import plot_outputs
from trainer.tasks.display import BarChart, Scatter


@pytest.mark.parametrize("name", ["年齢", "$x^$", "broken \udcff name"])
def test_names_are_not_read_as_formulas_and_keep_their_characters(name: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).random((20, 2), np.float32)
    plot_outputs(Scatter(numbers, numbers + 1, [name, "age"]), tmp_path / "scatter.png")
    plot_outputs(BarChart("average precision", "labels", [(name, 3, 0.5)], total=2), tmp_path / "labels.png")
    for file in ("scatter.png", "labels.png"):
        with Image.open(tmp_path / file) as figure:
            assert np.asarray(figure.convert("L")).std() > 10
