"""Images that the tests of runs share."""

from pathlib import Path

import pytest
from runs import draw_classes


@pytest.fixture(scope="module")
def photo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("photos"))
