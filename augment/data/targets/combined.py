"""Targets of several kinds beside each other, such as a mask and a class for each image."""

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
    """Targets by name: in a batch a dict of what each kind has there. A target is a dict by the same names.

    They are for `Transform`: data sets have one kind.
    """

    noun, units, task = "target", "targets of several kinds", "several"

    kinds: Mapping[str, Kind] = field(compare=False)

    def load(self, target: Target) -> dict[str, Any]:
        """Return what each kind needs of its target."""
        kinds = self.kinds.items()
        return {n: kind.load(target[n]) if isinstance(kind, SpatialKind) else target[n] for n, kind in kinds}

    def follow(self, loaded: Sequence[Any], motion: BatchMotion, rules: Rules) -> dict[str, Any]:
        """Return the targets of each kind."""
        found: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            own = [target[name] for target in loaded]
            if isinstance(kind, SpatialKind):
                found[name] = kind.follow(own, motion, rules)
            else:
                found[name] = kind.collate(own).to(motion.device, non_blocking=True)
        return found

    def draw(self, drawing: Drawing, target: Any, names: Sequence[str]) -> None:
        """Draw the targets of each kind that are in the image."""
        for name, kind in self.kinds.items():
            if isinstance(kind, SpatialKind):
                kind.draw(drawing, target[name], names)

    def given(self, targets: Any, count: int) -> list[Any]:
        """Return targets in memory, a batch of each kind by its name, image by image."""
        columns = {}
        for name, kind in self.kinds.items():
            own = targets[name]
            if len(own) != count:
                raise UserError(f"targets[{name!r}]: {len(own)} of them for {count} images. Allowed: one each.")
            columns[name] = kind.given(own, count) if isinstance(kind, SpatialKind) else [_plain(one) for one in own]
        return [{name: column[number] for name, column in columns.items()} for number in range(count)]

    def fault(self, targets: Sequence[object], names: int) -> str:
        """Refuse them as targets of a data set."""
        return f"of several kinds, {', '.join(self.kinds)}. Allowed: one kind; a Transform takes several."


def _plain(value: Any) -> Any:
    """Return a target of a whole image in plain types: a number, or a tuple of numbers."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return tuple(found) if isinstance(found, list) else found
