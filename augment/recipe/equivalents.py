"""How transforms of torchvision, albumentations and timm are written in a recipe."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from augment.support.yaml_files import read_yaml


@dataclass(frozen=True)
class Equivalent:
    """A transform that others have, a row of equivalents.yaml."""

    torchvision: str = ""  # names in torchvision.transforms.v2
    albumentations: str = ""  # names there
    timm: str = ""  # arguments of timm.data.create_transform, or of timm.data.Mixup
    steps: str = ""  # the steps of a recipe that do the same, as in YAML; empty: none do
    note: str = ""  # where it is otherwise, or what differs

    def parsed(self) -> dict[str, Any]:
        """Return the steps as plain values."""
        return yaml.safe_load(f"{{{self.steps}}}") or {}


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """Return the rows of the table."""
    rows: Any = read_yaml(Path(__file__).with_suffix(".yaml"))
    return tuple(Equivalent(**row) for row in rows)


def op_like(name: str) -> str | None:
    """Return the op that does what a transform of torchvision or albumentations does; RandomHorizontalFlip: flip."""
    for row in equivalents():
        theirs = re.findall(r"[A-Z]\w*", f"{row.torchvision} {row.albumentations}")
        if name.replace("_", "").lower() in map(str.lower, theirs):
            for step, values in row.parsed().items():
                return str((values or {}).get("op", step))
    return None
