"""What tests of the check of images share."""

from pathlib import Path

import pytest

from augment.data import check
from augment.data.check import Decoder


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were opened."""
    names: list[str] = []
    examine = check._examine

    def spy(file: Path, decoder: Decoder) -> object:
        names.append(file.name)
        return examine(file, decoder)

    monkeypatch.setattr(check, "_examine", spy)
    return names
