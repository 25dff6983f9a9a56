"""Fixtures of the tests of the public face: a small folder of two classes, and a recipe for it."""

from pathlib import Path

import pytest
from red_and_blue import SIZE, write_folder

import augment
from augment import Recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return augment.load_recipe("imagenette", f"aug.size={SIZE}")
