"""Several views of each training image: equal views, or named views with their own steps."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from augment.params import (
    Choice,
    Count,
    ImageSize,
    Size,
    Texts,
    check_known,
    parse_params,
    parse_settings,
    setting,
    settings,
)
from augment.recipe.op import OPS
from augment.recipe.step import Step, parse_steps
from augment.support.errors import UserError, suggest


@dataclass(frozen=True, kw_only=True)
class View:
    """A named view. Its own steps change and extend the steps of `aug.train`."""

    count: int = setting(Count(default=1, within=(1, 16), doc="number of these views. Each has its own random draws"))
    size: Size | None = setting(  # noqa: RUF009
        ImageSize(optional=True, within=(8, 4096), doc="size of these views. Default: aug.size", unit="px")
    )
    share: tuple[str, ...] = setting(Texts(default=(), doc="steps that use the random draws of the first view"))
    name: str = ""  # the name in YAML
    steps: tuple[Step, ...] = ()  # all steps in order


@dataclass(frozen=True, kw_only=True)
class Views:
    """Several views of each training image, for self-supervised training."""

    count: int = setting(
        Count(default=1, within=(1, 16), doc="number of views per image. Each has its own random draws")
    )
    crop: str = setting(
        Choice(
            default="own", options=("own", "same"), doc="crop window: one per view (own), or one for all views (same)"
        )
    )
    named: tuple[View, ...] = field(default=(), repr=False)  # named views, instead of `count` equal views


def parse_views(given: object, key: str, train: object) -> Views:
    """Parse `aug.views`: count and crop, or named views.

    A named view starts from `train`, the checked mapping `aug.train`.
    """
    plain = settings(Views)
    is_named = isinstance(given, Mapping) and any(
        isinstance(value, Mapping | None) for name, value in given.items() if name not in plain
    )
    if not isinstance(given, Mapping) or not is_named:
        return parse_settings(Views, given, key)
    if unnamed := [name for name in given if name in plain]:
        raise UserError(
            f"{key}.{unnamed[0]} cannot be combined with named views. Remove it, or set count or share of a view."
        )
    views: list[View] = []
    for name, value in given.items():
        path = f"{key}.{name}"
        views.append(_parse_view(str(name), value, path, train if isinstance(train, Mapping) else {}))
        _check_shared(views[-1], views[0], f"{path}.share")
    return Views(named=tuple(views))


def _parse_view(name: str, given: object, key: str, train: Mapping[str, Any]) -> View:
    given = {} if given is None else given
    known = {**settings(View), "steps": None}
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Use a mapping of {', '.join(known)}.")
    check_known(given, known, key)
    plain = parse_params(settings(View), {n: v for n, v in given.items() if n != "steps"}, key)
    path, own = f"{key}.steps", given.get("steps") or {}
    if not isinstance(own, Mapping):
        raise UserError(f"{path}: {own!r} is not allowed. Write steps such as rotate: {{p: 0.5}}.")
    mixing = [step.key for step in parse_steps(train, "aug.train") if step.mixes]
    steps = parse_steps(merge_steps(train, own, last=mixing), path)
    for step in steps:
        if step.mixes and (step.key in own or step.key not in mixing):
            raise UserError(f"{path}.{step.key} mixes samples. Move it to aug.train.")
    return View(**plain, name=name, steps=steps)


def _check_shared(view: View, first: View, key: str) -> None:
    """Check that each step that a view shares is equal in the first view."""
    steps, others = ({step.key: step for step in v.steps} for v in (view, first))
    for name in view.share:
        if name not in steps:
            raise UserError(f"{key}: unknown step '{name}'.{suggest(name, steps)}")
        if steps[name] != others.get(name):
            raise UserError(f"{key}: '{name}' has different settings in view {first.name}. Use equal settings in both.")


def merge_steps(base: Mapping[str, Any], own: Mapping[str, Any], last: Collection[str] = ()) -> dict[str, Any]:
    """Merge `own` steps into `base` steps, as for a recipe that extends another recipe.

    A step of `own` with the name and op of a step of `base` changes that step's parameters. If the name is the same but
    the op differs, the step of `own` replaces the step of `base`. All other steps of `own` are new. They follow the
    steps of `base` but precede the `last` steps. A new crop replaces the crop of `base`.
    """
    own_crops = [name for name in own if _is_crop(name, own[name])]
    kept = {n: v for n, v in base.items() if n in own or not (own_crops and _is_crop(n, v))}
    changed = {n: _merge_step(n, v, own[n]) if n in own else v for n, v in kept.items()}
    crops = {n: own[n] for n in own_crops if n not in kept}
    new = {n: v for n, v in own.items() if n not in kept and n not in crops}
    ending = {n: changed.pop(n) for n in last if n in changed}
    return {**crops, **changed, **new, **ending}


def _merge_step(name: str, base: Any, own: Any) -> Any:
    base, own = ({} if step is None else step for step in (base, own))
    if not isinstance(own, Mapping):
        return own
    op = base.get("op", name)
    if own.get("op", op) != op:
        return own
    nested = {}
    if isinstance(base.get("steps"), Mapping) and isinstance(own.get("steps"), Mapping):
        nested["steps"] = merge_steps(base["steps"], own["steps"])
    return {**base, **own, **nested}


def _is_crop(name: str, step: Any) -> bool:
    op = OPS.get(str(step.get("op", name) if isinstance(step, Mapping) else name))
    return op is not None and op.kind == "crop"
