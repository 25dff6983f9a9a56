"""What tests of tools share."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from augment.params import Range
from augment.recipe import op as registry
from augment.recipe.op import numpy_op


@pytest.fixture
def plugin() -> Iterator[str]:
    """An op of the user's own, for the time of a test."""
    declared: Any = registry._OPS
    before = dict(declared)

    @numpy_op(level_range=Range(default=(0, 200), within=(0, 255), unit="lx", doc="gray level"))
    def paint(image: Any, level: float) -> Any:
        """Paint everything over."""
        return np.full_like(image, round(level))

    yield "paint"
    declared.clear()
    declared.update(before)
