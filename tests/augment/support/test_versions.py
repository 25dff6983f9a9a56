"""The versions of libraries in which names without a promise were found, and that these names are still there.

With another version, run all tests, then add it here. `augment/support/torch_versions.py`, `dali_versions.py` and
`hydra.py` are the places to change.
"""

import re
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from nvidia.dali import fn

from augment.support.hydra import get_yaml_loader

ROOT = Path(__file__).parents[3]

# PyTorch 2.11 on a GPU; the others are those of .ci/constraints.txt.
TESTED = {"torch": ("2.11", "2.14"), "nvidia-dali-cuda120": ("2.4",), "hydra-core": ("1.3",), "omegaconf": ("2.3",)}


@pytest.mark.parametrize(("name", "tested"), TESTED.items())
def test_the_version_is_one_that_was_tested(name: str, tested: tuple[str, ...]) -> None:
    pinned = dict(re.findall(r"^(\S+)==(\d+\.\d+)", (ROOT / ".ci" / "constraints.txt").read_text(), re.MULTILINE))
    assert pinned[name] in tested
    assert re.match(r"\d+\.\d+", version(name))[0] in tested


def test_the_names_are_there() -> None:
    code = "".join(path.read_text() for room in ("augment", "trainer") for path in (ROOT / room).rglob("*.py"))
    for library, module in (("torch", torch), ("fn", fn)):
        names = set(re.findall(rf"\b{library}\.(_\w+(?:\.\w+)*)\(", code))
        assert names
        assert all(callable(attrgetter(name)(module)) for name in names)
    assert callable(get_yaml_loader)
