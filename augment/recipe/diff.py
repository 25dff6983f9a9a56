"""Compare two recipes: changed settings, and steps that were added, removed, moved or changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from augment.params import Number, Param, settings
from augment.recipe.steps import Aug, Step
from augment.recipe.views import View, Views

ChangeKind = Literal["added", "removed", "moved", "changed"]
_NUMBER = Number(doc="")  # how p and weight are shown


@dataclass(frozen=True)
class Change:
    """One difference between two recipes.

    Attributes:
        kind: what happened to the step or setting.
        name: the setting or the step, as a path if the step is nested in another one.
        text: parameters of a step that was added or removed; the new position; or `parameter old -> new`.
    """

    kind: ChangeKind
    name: str
    text: str = ""

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-", "moved": ">", "changed": "~"}[self.kind]
        return f"{sign} {self.name}  {self.text}".rstrip()


def diff_settings(old: Aug, new: Aug) -> list[Change]:
    """Return the settings that differ, in order of declaration."""
    before, after = dict(_settings(old)), dict(_settings(new))
    return [
        Change("changed", name, _arrow(param, value, after[name][1]))
        for name, (param, value) in before.items()
        if value != after[name][1]
    ]


def _settings(section: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Param[Any], object]]]:
    for field in fields(section):
        value = getattr(section, field.name)
        if "param" in field.metadata:
            yield prefix + field.name, (field.metadata["param"], value)
        elif is_dataclass(value):
            yield from _settings(value, f"{prefix}{field.name}.")


def diff_steps(old: Sequence[Step], new: Sequence[Step], path: str = "") -> list[Change]:
    """Return the differences between the steps of a split: removed steps first, then the rest in the new order.

    Steps are matched by key; the same key with another op is another step.

    Args:
        old: steps before.
        new: steps now.
        path: what is put before their names.
    """
    before = {step.key: step for step in old}
    kept = {step.key for step in new if step.key in before and before[step.key].op == step.op}
    moved = _moved([step.key for step in old if step.key in kept], [step.key for step in new])
    changes = [change for step in old if step.key not in kept for change in _whole("removed", step, path)]
    for step in new:
        if step.key not in kept:
            changes += _whole("added", step, path)
            continue
        name, was = path + step.key, before[step.key]
        if step.key in moved:
            changes.append(Change("moved", name, moved[step.key]))
        changes += [
            Change("changed", name, f"{label} {_arrow(param, value, _shown(step)[label][1])}")
            for label, (param, value) in _shown(was).items()
            if value != _shown(step)[label][1]
        ]
        if step.op.nests:
            changes += diff_steps(was.steps, step.steps, f"{name}.")
    return changes


def diff_views(old: Views, new: Views) -> list[Change]:
    """Return the differences between views by name: their settings, steps and order."""
    before, after = ({view.name: view for view in views.named} for views in (old, new))
    moved = _moved(list(before), list(after))
    changes = []
    for name in dict.fromkeys([*before, *after]):
        path = f"views.{name}"
        if name not in after:
            changes.append(Change("removed", path))
            continue
        if name not in before:
            changes.append(Change("added", path))
        if name in moved:
            changes.append(Change("moved", path, moved[name]))
        was, now = before.get(name, View()), after[name]
        changes += [
            Change("changed", f"{path}.{setting}", _arrow(param, getattr(was, setting), getattr(now, setting)))
            for setting, param in settings(View).items()
            if getattr(was, setting) != getattr(now, setting)
        ]
        changes += diff_steps(was.steps, now.steps, f"{path}.")
    return changes


def _shown(step: Step) -> dict[str, tuple[Param[Any], Any]]:
    """Return what a recipe sets of a step, by its label."""
    p = {"p": (_NUMBER, step.p)} if "p" in step.op.params else {}
    params = {n.removesuffix("_range"): (step.op.params[n], value) for n, value in step.params.items()}
    return {**p, "weight": (_NUMBER, step.weight), **params}


def _whole(kind: ChangeKind, step: Step, path: str) -> Iterator[Change]:
    """Yield a step that only one recipe has, and the steps nested in it."""
    head = [] if step.key == step.op.name else [f"({step.op.name})"]
    weight = [f"weight {step.weight:g}"] if step.weight != 1 else []
    p = [f"p {step.p:g}"] if "p" in step.op.params else []
    params = [", ".join([*step.settings, *weight])] if step.settings or weight else []
    yield Change(kind, path + step.key, "  ".join([*head, *p, *params]))
    if step.op.nests:
        for nested in step.steps:
            yield from _whole(kind, nested, f"{path}{step.key}.")


def _moved(old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """Return the new position of each key that has moved, of as few as possible."""
    kept = [key for key in new if key in old]
    blocks = SequenceMatcher(None, [key for key in old if key in kept], kept, autojunk=False).get_matching_blocks()
    unmoved = {key for block in blocks for key in kept[block.b : block.b + block.size]}
    before = dict(zip(new, ["", *new], strict=False))
    return {key: f"now after {before[key]}" if before[key] else "now the first" for key in kept if key not in unmoved}


def _arrow(param: Param[Any], old: object, new: object) -> str:
    shown = ["null" if value is None else param.show(value) for value in (old, new)]
    if shown[0] == shown[1]:  # equal once rounded
        shown = [str(old), str(new)]
    return " -> ".join(shown)
