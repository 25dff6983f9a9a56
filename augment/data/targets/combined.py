"""Targets of several kinds per image, such as a mask and a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from augment.data.targets.kind import Kind, Target
from augment.data.targets.spatial import Rules, SpatialKind
from augment.support.errors import UserError

if TYPE_CHECKING:
    from augment.drawing.target_overlays import Drawing
    from augment.pipeline.geometry.motion import BatchMotion


@dataclass(frozen=True)
class Several(SpatialKind):
    """Targets of several kinds, for `Transform` only, because datasets have one kind.

    A target is a dict by name. A batch is a dict of each kind's batch, under the same names.

    Attributes:
        kinds: the kind of each target by name.
    """

    noun, units, task = "target", "targets of several kinds", "several"

    kinds: Mapping[str, Kind] = field(compare=False)

    def load(self, target: Target) -> dict[str, Any]:
        """Return each kind's loaded target by name."""
        spatial = {name: kind for name, kind in self.kinds.items() if isinstance(kind, SpatialKind)}
        return {name: spatial[name].load(target[name]) if name in spatial else target[name] for name in self.kinds}

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            own = [target[name] for target in loaded]
            if isinstance(kind, SpatialKind):
                found[name] = kind.follow(own, motion, rules)
            else:
                found[name] = kind.collate(own).to(motion.device, non_blocking=True)
        return found

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        for name, kind in self.kinds.items():
            if isinstance(kind, SpatialKind):
                kind.draw(drawing, target[name], names)

    def from_memory(self, targets: Any, count: int) -> list[Any]:
        """Convert targets in memory, one batch per kind by name, to one dict per image."""
        columns = {}
        for name, kind in self.kinds.items():
            own = targets[name]
            if len(own) != count:
                raise UserError(
                    f"targets[{name!r}]: there are {len(own)} targets for {count} images. Pass one per image."
                )
            columns[name] = kind.from_memory(own, count) if isinstance(kind, SpatialKind) else list(map(_plain, own))
        return [{name: column[number] for name, column in columns.items()} for number in range(count)]

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Reject targets of several kinds, because a dataset has one kind."""
        return f"of several kinds ({', '.join(self.kinds)}). A dataset has one kind. Use a Transform for several."


def _plain(value: Any) -> Any:
    """Return the target of a whole image as a number or a tuple of numbers."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return tuple(found) if isinstance(found, list) else found
