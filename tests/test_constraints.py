"""The versions that CI installs are those of every dependency, and such as pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def test_every_dependency_has_a_tested_version() -> None:
    head, *lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    assert head.startswith("# Tested together on Python 3.")
    # No address of an index, and no path.
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.]*", line)] == []
    versions = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for line in (*project["dependencies"], *extras["dev"], *extras["docs"]):
        wanted = Requirement(line)
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), line
