"""The `aug` section of the configuration: from a mapping, as YAML gives it, to checked and typed steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import augment.ops  # noqa: F401  (registers the built-in ops)
from augment.errors import UserError, suggest
from augment.params import Channels, Count, Flag, Texts, parse_params, setting, settings
from augment.registry import Op, find_op, load_plugins

SplitName = Literal["train", "val"]

# Of ImageNet, as in torchvision and timm; a model that was pretrained with others says so.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Step:
    """One use of an op.

    Attributes:
        key: its name in YAML, unique within the split; its random draws are keyed by it.
        op: what it does.
        p: probability of applying it to a sample.
        params: every other parameter, checked and complete.
    """

    key: str
    op: Op
    p: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [f"{n.removesuffix('_range')} {p.show(self.params[n])}" for n, p in self.op.own_params.items()]
        name = self.key if self.key == self.op.name else f"{self.key} ({self.op.name})"
        return f"{name}  p {self.p:g}  {', '.join(shown)}".rstrip(" ,")


@dataclass(frozen=True)
class Aug:
    """The augmentation of both splits.

    Attributes:
        train: steps of the train split, in order of application.
        val: steps of the val split.
    """

    size: int = setting(Count(default=128, within=(8, 4096), doc="side of the square that the model is fed", unit="px"))
    fuse: bool = setting(
        Flag(default=True, doc="compose adjacent geometry steps into one warp, adjacent color steps into one matrix")
    )
    mean: tuple[float, float, float] | None = setting(
        Channels(optional=True, within=(0, 1), doc="subtracted, in 0..1; null: the model's own, else ImageNet's")
    )
    std: tuple[float, float, float] | None = setting(
        Channels(optional=True, within=(0, 10), above=0, doc="divided by, in 0..1; null: like mean")
    )
    plugins: tuple[str, ...] = setting(Texts(default=(), doc="Python modules that declare ops of your own"))
    train: tuple[Step, ...] = ()
    val: tuple[Step, ...] = ()

    def steps(self, split: SplitName) -> tuple[Step, ...]:
        """Return the steps of a split."""
        return self.train if split == "train" else self.val


def parse_aug(given: object, key: str = "aug") -> Aug:
    """Check the `aug` section and return it typed.

    Args:
        given: mapping with any of the keys of `Aug`; null means no augmentation.
        key: key path of the section.

    Raises:
        UserError: an unknown key, op or parameter, a value out of range, or a crop that is not the only first step.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Allowed: a mapping, or +aug=NAME for a file of conf/aug.")
    known = {**settings(Aug), "train": None, "val": None}
    for name in given:
        if name not in known:
            raise UserError(f"{key}.{name}: unknown key.{suggest(str(name), known)}")
    plain = parse_params(settings(Aug), {n: v for n, v in given.items() if n not in ("train", "val")}, key)
    load_plugins(plain["plugins"], f"{key}.plugins")
    train, val = (parse_steps(given.get(split), f"{key}.{split}") for split in ("train", "val"))
    return Aug(**plain, train=train, val=val)


def parse_steps(given: object, key: str) -> tuple[Step, ...]:
    """Check an ordered mapping of steps, `{step: {parameter: value}}`; see `parse_aug`."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Allowed: a mapping of steps, as rotate: {{p: 0.5}}.")
    steps = tuple(_parse_step(str(name), params, f"{key}.{name}") for name, params in given.items())
    for i, step in enumerate(steps):
        if step.op.kind == "crop" and i > 0:
            first = steps[0]
            why = f"'{first.key}' is the crop" if first.op.kind == "crop" else f"'{first.key}' stands before it"
            raise UserError(f"{key}.{step.key}: {why}. Allowed: at most one crop, as the first step.")
    return steps


def _parse_step(name: str, given: object, key: str) -> Step:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Allowed: a mapping of parameters, as {{p: 0.5}}.")
    own = {n: v for n, v in given.items() if n != "op"}
    op = find_op(str(given["op"]), f"{key}.op") if "op" in given else find_op(name, key)
    if op.kind == "crop" and "p" in own:
        raise UserError(f"{key}.p: a crop applies to every picture. Allowed: {', '.join(op.params) or 'nothing'}.")
    params = parse_params(op.params, own, key)
    return Step(name, op, params.pop("p", 1.0), MappingProxyType(params))


def plain_steps(steps: tuple[Step, ...]) -> dict[str, dict[str, Any]]:
    """Return steps as plain values, complete, that `parse_steps` makes the same steps of."""
    return {step.key: _plain_step(step) for step in steps}


def _plain_step(step: Step) -> dict[str, Any]:
    params = {name: list(value) if isinstance(value, tuple) else value for name, value in step.params.items()}
    p = {"p": step.p} if "p" in step.op.params else {}
    return {"op": step.op.name, **p, **params}
