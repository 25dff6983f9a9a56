"""What tests of the check of images share."""

from pathlib import Path

import pytest

from augment.data import check


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were opened."""
    names: list[str] = []
    examine = check._examine

    def spy(file: Path) -> object:
        names.append(file.name)
        return examine(file)

    monkeypatch.setattr(check, "_examine", spy)
    return names
