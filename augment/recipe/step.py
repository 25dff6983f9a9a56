"""One step of a recipe: an op with its parameters, and how steps are parsed from YAML."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from augment.params import Number, check_known, parse_params, plain_value
from augment.recipe.equivalents import op_like
from augment.recipe.op import OPS, find_op
from augment.recipe.op_kinds import Op, PolicyOp
from augment.support.errors import UserError, key_slip


@dataclass(frozen=True)
class Step:
    """One use of an op in a recipe."""

    key: str  # its name in YAML, unique among its siblings and the key of its random stream
    op: Op
    p: float = 1.0  # probability of applying it to a sample
    params: Mapping[str, Any] = field(default_factory=dict)  # all other parameters, validated and complete
    steps: tuple["Step", ...] = ()  # the steps that a policy chooses from or consists of
    weight: float = 1.0  # how often one_of chooses it, relative to its siblings

    def leaves(self) -> Iterator["Step"]:
        """Yield the steps that are not policies: this step, or those nested in it."""
        if self.op.kind == "policy":
            for step in self.steps:
                yield from step.leaves()
        else:
            yield self

    @property
    def mixes(self) -> bool:
        """Whether it mixes samples and their targets."""
        return any(leaf.op.kind == "batch" for leaf in self.leaves())

    @property
    def title(self) -> str:
        """Its key, and its op in parentheses if the two differ."""
        return self.key if self.key == self.op.name else f"{self.key} ({self.op.name})"

    @property
    def settings(self) -> list[str]:
        """Its own parameters as phrases such as "angle -7..7 deg", without those that are null."""
        own = [
            f"{name.removesuffix('_range')} {param.show(self.params[name])}"
            for name, param in self.op.own_params.items()
            if self.params[name] is not None
        ]
        return [*own, "drawn once"] if self.drawn_once else own

    @property
    def drawn_once(self) -> bool:
        """Whether its drawn values are the same for every sample of a run."""
        return self.params.get("draw") == "once"

    def __reduce__(self) -> tuple[Any, ...]:
        # The op by its name: what decorators register has none by which pickle finds it.
        op = self.op.name, self.op.function.__module__
        return _unpickled, (op, self.key, self.p, dict(self.params), self.steps, self.weight)

    def __str__(self) -> str:
        return f"{self.title}  p {self.p:.4g}  {', '.join(self.settings)}".rstrip(" ,")


def _unpickled(
    op: tuple[str, str], key: str, p: float, params: dict[str, Any], steps: tuple[Step, ...], weight: float
) -> Step:
    name, module = op
    import_module(module)  # declares the op in a new process
    return Step(key, OPS[name], p, MappingProxyType(params), steps, weight)


def parse_steps(given: object, key: str) -> tuple[Step, ...]:
    """Validate an ordered mapping of steps, `{step: {parameter: value}}`; see `parse_aug`."""
    steps = _parse_steps(given, key)
    for i, step in enumerate(steps):
        if step.op.kind == "crop" and i > 0:
            first = steps[0]
            why = f"'{first.key}' is the crop" if first.op.kind == "crop" else f"'{first.key}' comes before it"
            raise UserError(f"{key}.{step.key}: {why}. Allowed: at most one crop, as the first step.")
        if i > 0 and steps[i - 1].mixes and not step.mixes:
            raise UserError(f"{key}.{step.key}: '{steps[i - 1].key}' mixes samples. Allowed: no other step after that.")
    return steps


def _parse_steps(given: object, key: str, *, weights: bool = False) -> tuple[Step, ...]:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        dashes = ", without dashes" if isinstance(given, list) else ""
        raise UserError(
            f"{key}: {given!r} is not allowed. Allowed: a mapping of steps, such as rotate: {{p: 0.5}}{dashes}."
        )
    if twice := [name for name, count in Counter(map(str, given)).items() if count > 1]:
        raise UserError(f"{key}.{twice[0]}: given twice, as text and as a number. Allowed: unique names.")
    steps: list[Step] = []
    for name, params in given.items():
        if params is not None and not isinstance(params, Mapping):
            raise UserError(f"{key}.{name}: {params!r} is not allowed.{_misplaced(name, params, key, steps)}")
        steps.append(_parse_step(str(name), params, f"{key}.{name}", weights))
    return tuple(steps)


def _misplaced(name: object, value: object, key: str, before: list[Step]) -> str:
    """Return the end of the message about a value where a step is expected: what is allowed, or what it may mean."""
    if before and name in before[-1].op.params:
        path = f"{key}.{before[-1].key}.{name}"
        return f" Did you mean {path}? In a file, the settings of a step are indented below its name."
    if isinstance(value, bool | None):
        off = "" if value else f" ~{key}.{name} removes the step."
        return f"{off} Allowed: a mapping of parameters, such as {{p: 0.5}}."
    if "p" in getattr(OPS.get(str(name)), "params", ()) and isinstance(value, int | float) and 0 <= value <= 1:
        return f" Did you mean {key}.{name}.p={value}?"
    return f"{key_slip(name, value)} Allowed: a mapping of parameters, such as {{p: 0.5}}."


def _parse_step(name: str, given: Mapping[Any, Any] | None, key: str, weights: bool) -> Step:
    given = {} if given is None else given
    if "." in name:
        raise UserError(
            f"{key}: a step's name cannot contain a dot. Allowed: the name of an op, or any other name with op: NAME."
        )
    called, path = (str(given["op"]), f"{key}.op") if "op" in given else (name, key)
    op = find_op(called, path, None if called in OPS else op_like(called))
    own = {n: v for n, v in given.items() if n not in ("op", "steps", *(["weight"] if weights else []))}
    if op.kind == "crop" and "p" in own:
        raise UserError(f"{key}.p: a crop applies to every image. Allowed: {', '.join(op.params) or 'no parameters'}.")
    if "weight" in own:
        raise UserError(f"{key}.weight: only steps nested in one_of have a weight. Allowed: {', '.join(op.params)}.")
    further = ("op", *(["steps"] if op.nests else []), *(["weight"] if weights else []))
    check_known(given, {**op.params, **dict.fromkeys(further)}, key, {"prob": "p", "probability": "p"})
    allowed = Number(within=(0, 1e6), above=0, doc="how often one_of chooses the step, relative to the others")
    weight = allowed.parse(given["weight"], f"{key}.weight") if weights and "weight" in given else None
    params = parse_params(op.params, own, key)
    p = params.pop("p", 1.0)
    steps = _parse_nested(op, given.get("steps"), params, key) if isinstance(op, PolicyOp) else ()
    return Step(name, op, p, MappingProxyType(params), steps, 1.0 if weight is None else weight)


def _parse_nested(op: PolicyOp, given: object, params: Mapping[str, Any], key: str) -> tuple[Step, ...]:
    """Return the steps of a policy: those nested in YAML, or those its function returns."""
    path = f"{key}.steps" if op.nests else f"{key} ({op.name})"
    steps = _parse_steps(given if op.nests else op.function(**params), path, weights=op.weighted)
    if op.nests and not steps:
        allowed = "a mapping of steps, such as rotate: {angle_range: [-9, 9]}"
        raise UserError(f"{path}: no steps to choose from. Allowed: {allowed}.")
    for step in steps:
        if step.op.kind == "crop":
            raise UserError(
                f"{path}.{step.key}: crops cannot be nested. Allowed: one crop, as the recipe's first step."
            )
        if step.mixes != steps[0].mixes:
            why = f"either '{steps[0].key}' or this step mixes samples, but not both"
            raise UserError(f"{path}.{step.key}: {why}. Allowed: steps that all mix samples, or none that does.")
    return steps


def plain_steps(steps: tuple[Step, ...]) -> dict[str, dict[str, Any]]:
    """Return steps as a complete mapping of plain values, from which `parse_steps` makes the same steps."""
    return {step.key: _plain_step(step) for step in steps}


def _plain_step(step: Step) -> dict[str, Any]:
    plain: dict[str, Any] = {"op": step.op.name}
    if "p" in step.op.params:
        plain["p"] = step.p
    if step.weight != 1:
        plain["weight"] = step.weight
    plain |= {name: plain_value(value) for name, value in step.params.items()}
    return plain | ({"steps": plain_steps(step.steps)} if step.op.nests else {})
