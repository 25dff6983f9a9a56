"""Images that the tests of ops share."""

from pathlib import Path

import numpy as np
import pytest
from photos import draw_photo
from rendering import COUNT, SIZE, save, vivid_images


@pytest.fixture(scope="module")
def vivid(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save(tmp_path_factory.mktemp("vivid"), vivid_images(COUNT))


@pytest.fixture(scope="module")
def soft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """As many photos as the module's COUNT."""
    return save(
        tmp_path_factory.mktemp("soft"),
        [draw_photo(SIZE, SIZE, seed) for seed in range(getattr(request.module, "COUNT", COUNT))],
    )


@pytest.fixture(scope="module")
def grays(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of one gray, 100."""
    return save(tmp_path_factory.mktemp("grays"), [np.full((SIZE, SIZE, 3), 100)] * COUNT)
