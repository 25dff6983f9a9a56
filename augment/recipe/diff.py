"""Compare two recipes: changed settings, and steps that were added, removed, moved or changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeGuard

from augment.params import Param, settings
from augment.recipe.op import OPS
from augment.recipe.steps import Aug, Step, plain_steps
from augment.recipe.views import View, Views

ChangeKind = Literal["added", "removed", "moved", "changed"]
Plain = Mapping[str, Any]


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
    text: str

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


def diff_steps(old: tuple[Step, ...], new: tuple[Step, ...]) -> list[Change]:
    """Return the differences between the steps of a split: removed steps first, then the rest in the new order.

    Steps are matched by key; the same key with another op is another step.
    """
    return list(_diff_steps(plain_steps(old), plain_steps(new), ""))


def diff_views(old: Views, new: Views) -> list[Change]:
    """Return the differences between views by name: their settings, steps and order."""
    before, after = ({view.name: view for view in views.named} for views in (old, new))
    moved = _moved(list(before), list(after))
    changes = []
    for name in dict.fromkeys([*before, *after]):
        path = f"views.{name}"
        if name not in after:
            changes.append(Change("removed", path, ""))
            continue
        if name not in before:
            changes.append(Change("added", path, ""))
        if name in moved:
            changes.append(Change("moved", path, moved[name]))
        was, now = before.get(name, View()), after[name]
        changes += [
            Change("changed", f"{path}.{setting}", _arrow(param, getattr(was, setting), getattr(now, setting)))
            for setting, param in settings(View).items()
            if getattr(was, setting) != getattr(now, setting)
        ]
        changes += _diff_steps(plain_steps(was.steps), plain_steps(now.steps), f"{path}.")
    return changes


def _diff_steps(old: Mapping[str, Plain], new: Mapping[str, Plain], prefix: str) -> Iterator[Change]:
    kept = [key for key in new if key in old and old[key].get("op") == new[key].get("op")]
    for key in old:
        if key not in kept:
            yield from _whole("removed", prefix + key, old[key])
    moved = _moved([key for key in old if key in kept], list(new))
    for key in new:
        if key not in kept:
            yield from _whole("added", prefix + key, new[key])
        else:
            if key in moved:
                yield Change("moved", prefix + key, moved[key])
            yield from _diff_values(old[key], new[key], prefix + key)


def _moved(old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """Return the new position of each key that has moved."""
    kept = [key for key in new if key in old]
    unmoved = _longest_in_order([key for key in old if key in kept], kept)
    before = dict(zip(new, ["", *new], strict=False))
    return {key: f"now after {before[key]}" if before[key] else "now the first" for key in kept if key not in unmoved}


def _whole(kind: ChangeKind, name: str, step: Plain) -> Iterator[Change]:
    """Yield a step that only one recipe has, and the steps nested in it."""
    op = OPS.get(str(step.get("op")))
    common = {"op", "p"} if op is None else {"op", *op.params.keys() - op.own_params.keys()}
    shown = [n for n, value in step.items() if n not in common and value is not None and not _is_steps(value)]
    head = "" if name.split(".")[-1] == step.get("op") else f"({step.get('op')})"
    p = f"p {step['p']:g}" if "p" in step else ""
    params = ", ".join(f"{_label(n)} {_show(_param(step, n), step[n])}" for n in shown)
    yield Change(kind, name, "  ".join(part for part in (head, p, params) if part))
    for value in step.values():
        if _is_steps(value):
            for key, nested in value.items():
                yield from _whole(kind, f"{name}.{key}", nested)


def _diff_values(old: Plain, new: Plain, name: str, path: str = "") -> Iterator[Change]:
    """Yield the parameters of a step that differ; mappings that are no parameter of the op are compared by key."""
    for key in dict.fromkeys([*old, *new]):
        before, after, param = old.get(key), new.get(key), _param(new, key)
        if _is_steps(before) and _is_steps(after):
            yield from _diff_steps(before, after, f"{name}.")
        elif param is None and isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _diff_values(before, after, name, f"{path}{key}.")
        elif key not in old or key not in new:
            value = f"(unset) -> {_show(param, after)}" if key in new else f"{_show(param, before)} -> (unset)"
            yield Change("changed", name, f"{path}{_label(key)} {value}")
        elif before != after:
            yield Change("changed", name, f"{path}{_label(key)} {_arrow(param, before, after)}")


def _is_steps(value: object) -> TypeGuard[Mapping[str, Plain]]:
    return isinstance(value, Mapping) and all(isinstance(v, Mapping) and "op" in v for v in value.values())


def _longest_in_order(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return a longest subsequence of `new` that is in the order of `old`, which has the same names."""
    chains: list[list[str]] = []
    for key in new:
        before = [chain for chain in chains if old.index(chain[-1]) < old.index(key)]
        chains.append([*max(before, key=len, default=[]), key])
    return max(chains, key=len, default=[])


def _param(step: Plain, name: str) -> Param[Any] | None:
    op = OPS.get(str(step.get("op")))
    return None if op is None else op.params.get(name)


def _label(name: str) -> str:
    return name.removesuffix("_range")


def _arrow(param: Param[Any] | None, old: object, new: object) -> str:
    shown = _show(param, old), _show(param, new)
    if shown[0] == shown[1]:  # equal once rounded
        shown = str(old), str(new)
    return " -> ".join(shown)


def _show(param: Param[Any] | None, value: object) -> str:
    if value is None:
        return "null"
    if param is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    return param.show(param.parse(value, ""))
