"""Images that the tests of sources share."""

import pytest
from files_of_sources import Sample, drawn


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Six JPEGs of three classes."""
    return drawn(6)
