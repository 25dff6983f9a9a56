"""Compare two recipes: changed settings, and steps that were added, removed, moved or changed.

+ name  parameters         added            > name  now after other            moved
- name  parameters         removed          ~ name  parameter old -> new       changed
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from augment.params import Number, Param, settings
from augment.recipe.steps import Aug, SplitName, Step
from augment.recipe.views import View, Views

_NUMBER = Number(doc="")  # how p and weight are shown

# What a recipe sets, by its label; and of each part of a recipe, by its path, how it is described, and what it sets.
_Set = dict[str, tuple[Param[Any], Any]]
_Parts = dict[str, tuple[str, _Set]]


def diff_settings(old: Aug, new: Aug) -> list[str]:
    """Return the settings that differ, in order of declaration."""
    before, after = (_set_by(aug) | {f"views.{n}": s for n, s in _set_by(aug.views).items()} for aug in (old, new))
    return [f"~ {name}  {change}" for name, change in _changed(before, after)]


def diff_steps(old: Aug, new: Aug, split: SplitName) -> list[str]:
    """Return the differences between the steps and views of a split: what was removed, then the rest in the new order.

    Steps are matched by key; the same key with another op is another step.
    """
    before, after = ({**_steps(aug.steps(split), ""), **_views(aug, split)} for aug in (old, new))
    moved = _moved(list(before), list(after))
    lines = [f"- {name}  {text}".rstrip() for name, (text, _) in before.items() if name not in after]
    for name, (text, values) in after.items():
        if name not in before:
            lines.append(f"+ {name}  {text}".rstrip())
            continue
        lines += [f"> {name}  {moved[name]}"] if name in moved else []
        lines += [f"~ {name}  {label} {change}" for label, change in _changed(before[name][1], values)]
    return lines


def _set_by(section: Aug | Views | View) -> _Set:
    return {name: (param, getattr(section, name)) for name, param in settings(type(section)).items()}


def _steps(steps: Sequence[Step], path: str) -> _Parts:
    """Return steps, and those nested in them, by their paths."""
    parts: _Parts = {}
    for step in steps:
        p: _Set = {"p": (_NUMBER, step.p)} if "p" in step.op.params else {}
        params = {n.removesuffix("_range"): (step.op.params[n], value) for n, value in step.params.items()}
        weight = [f"weight {step.weight:g}"] if step.weight != 1 else []
        text = ", ".join([*(f"p {value:g}" for _, value in p.values()), *step.settings, *weight])
        parts[path + step.title] = text, {**p, "weight": (_NUMBER, step.weight), **params}
        if step.op.nests:
            parts |= _steps(step.steps, f"{path}{step.key}.")
    return parts


def _views(aug: Aug, split: SplitName) -> _Parts:
    """Return the views by name, which are those of train, and their steps."""
    parts: _Parts = {}
    for view in aug.views.named if split == "train" else ():
        parts[f"views.{view.name}"] = "", _set_by(view)
        parts |= _steps(view.steps, f"views.{view.name}.")
    return parts


def _changed(old: _Set, new: _Set) -> Iterator[tuple[str, str]]:
    """Yield the label of each value that differs, with the old and the new one."""
    for label, (param, value) in new.items():
        if (was := old[label][1]) != value:
            shown = ["null" if one is None else param.show(one) for one in (was, value)]
            yield label, " -> ".join(shown if shown[0] != shown[1] else map(str, (was, value)))  # equal once rounded


def _moved(old: Sequence[str], new: Sequence[str]) -> Mapping[str, str]:
    """Return the new position of each path that has moved among its siblings, of as few as possible."""
    moved = {}
    for parent in dict.fromkeys(path.rpartition(".")[0] for path in new):
        before, after = ([path for path in some if path.rpartition(".")[0] == parent] for some in (old, new))
        kept = [path for path in after if path in before]
        blocks = SequenceMatcher(None, [path for path in before if path in kept], kept, autojunk=False)
        unmoved = {path for block in blocks.get_matching_blocks() for path in kept[block.b : block.b + block.size]}
        for path in kept:
            if path not in unmoved:
                at = after.index(path)
                moved[path] = f"now after {after[at - 1].rpartition('.')[2]}" if at else "now the first"
    return moved
