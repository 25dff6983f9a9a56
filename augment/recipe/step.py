"""One step of a recipe: an op with its parameters, and how steps are parsed from YAML."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from augment.params import Number, check_known, parse_params, plain_value
from augment.recipe.equivalents import op_like
from augment.recipe.op import OPS, find_op
from augment.recipe.op_kinds import Op, PolicyOp
from augment.support.errors import UserError

_NOT_PER_CHANNEL = ("per_channel", False)


@dataclass(frozen=True)
class Step:
    """One use of an op in a recipe."""

    key: str  # the name in YAML, unique among its siblings, and the key of the random stream
    op: Op
    p: float = 1.0  # probability of applying the step to a sample
    params: Mapping[str, Any] = field(default_factory=dict)  # all other parameters, valid and with defaults
    steps: tuple["Step", ...] = ()  # the steps of a policy
    weight: float = 1.0  # how often one_of chooses the step, relative to its siblings

    def leaves(self) -> Iterator["Step"]:
        """Yield the step itself. For a policy, yield the leaves of its steps instead."""
        if self.op.kind == "policy":
            for step in self.steps:
                yield from step.leaves()
        else:
            yield self

    @property
    def mixes(self) -> bool:
        return any(leaf.op.kind == "batch" for leaf in self.leaves())

    @property
    def title(self) -> str:
        """The key, and the op in parentheses if it has a different name."""
        return self.key if self.key == self.op.name else f"{self.key} ({self.op.name})"

    @property
    def settings(self) -> list[str]:
        """The step's own parameters as phrases such as "angle -7..7 deg", without null parameters."""
        own = [
            f"{name.removesuffix('_range')} {param.show(self.params[name])}"
            for name, param in self.op.own_params.items()
            if self.params[name] is not None
        ]
        own += ["per channel"] if self.params.get("per_channel") else []
        return [*own, "drawn once"] if self.drawn_once else own

    @property
    def drawn_once(self) -> bool:
        """Whether every sample of a run gets the same drawn values."""
        return self.params.get("draw") == "once"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the name of the op, because pickle cannot find the wrappers that `numpy_op` and `torch_op` register.
        op = self.op.name, self.op.function.__module__
        return _unpickled, (op, self.key, self.p, dict(self.params), self.steps, self.weight)

    def __str__(self) -> str:
        return f"{self.title}  p {self.p:.4g}  {', '.join(self.settings)}".rstrip(" ,")


def _unpickled(
    op: tuple[str, str], key: str, p: float, params: dict[str, Any], steps: tuple[Step, ...], weight: float
) -> Step:
    name, module = op
    import_module(module)  # declares the op, in a new process
    return Step(key, OPS[name], p, MappingProxyType(params), steps, weight)


def parse_steps(given: object, key: str) -> tuple[Step, ...]:
    """Parse and validate an ordered mapping of steps, `{step: {parameter: value}}`."""
    steps = _parse_steps(given, key)
    for i, step in enumerate(steps):
        if step.op.kind == "crop" and i > 0:
            first = steps[0]
            if first.op.kind == "crop":
                raise UserError(f"{key}.{step.key}: '{first.key}' is already a crop. Remove one of the two.")
            raise UserError(f"{key}.{step.key}: a crop must be the first step. Move it before '{first.key}'.")
        if i > 0 and steps[i - 1].mixes and not step.mixes:
            mixing = steps[i - 1].key
            raise UserError(f"{key}.{step.key}: '{mixing}' mixes samples, so it must come later. Move it to the end.")
    return steps


def _parse_steps(given: object, key: str, *, weights: bool = False) -> tuple[Step, ...]:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        dashes = ", without dashes" if isinstance(given, list) else ""
        raise UserError(f"{key}: {given!r} is not allowed. Write steps such as rotate: {{p: 0.5}}{dashes}.")
    steps: list[Step] = []
    for name, params in given.items():
        if params is not None and not isinstance(params, Mapping):
            is_p = name in OPS and type(params) in (int, float) and 0 <= params <= 1
            meant = f" Did you mean {key}.{name}.p={params}?" if is_p else ""
            raise UserError(
                f"{key}.{name}: {params!r} is not allowed.{meant} Give the step a mapping such as {{p: 0.5}}. In a "
                f"file, indent the mapping below the step's name. To remove the step, use ~{key}.{name}."
            )
        steps.append(_parse_step(str(name), params, f"{key}.{name}", weights))
        if str(name) in [step.key for step in steps[:-1]]:  # such as 1 and "1"
            raise UserError(f"{key}.{name}: two steps have this name. Rename one, and set its op with op: NAME.")
    return tuple(steps)


def _parse_step(name: str, given: Mapping[Any, Any] | None, key: str, weights: bool) -> Step:
    given = {} if given is None else given
    if "." in name:
        raise UserError(f"{key}: a step's name cannot contain a dot. Rename the step, and set its op with op: NAME.")
    op_name, path = (str(given["op"]), f"{key}.op") if "op" in given else (name, key)
    op = find_op(op_name, path, None if op_name in OPS else op_like(op_name))
    weight_key = ("weight",) if weights else ()
    own = {n: v for n, v in given.items() if n not in ("op", "steps", *weight_key)}
    if op.kind == "crop" and "p" in own:
        raise UserError(f"{key}.p: a crop applies to every image. Allowed: {', '.join(op.params) or 'no parameters'}.")
    if "weight" in own:
        raise UserError(f"{key}.weight: only steps nested in one_of have a weight. Allowed: {', '.join(op.params)}.")
    further_keys = ("op", *(("steps",) if op.nests else ()), *weight_key)
    check_known(given, {**op.params, **dict.fromkeys(further_keys)}, key, {"prob": "p", "probability": "p"})
    allowed = Number(within=(0, 1e6), above=0, doc="how often one_of chooses the step, relative to the others")
    weight = allowed.parse(given["weight"], f"{key}.weight") if weights and "weight" in given else None
    params = parse_params(op.params, own, key)
    p = params.pop("p", 1.0)
    steps = _parse_nested(op, given.get("steps"), params, key) if isinstance(op, PolicyOp) else ()
    return Step(name, op, p, MappingProxyType(params), steps, 1.0 if weight is None else weight)


def _parse_nested(op: PolicyOp, given: object, params: Mapping[str, Any], key: str) -> tuple[Step, ...]:
    """Return the steps of a policy, from YAML or from its function."""
    path = f"{key}.steps" if op.nests else f"{key} ({op.name})"
    steps = _parse_steps(given if op.nests else op.function(**params), path, weights=op.weighted)
    if op.nests and not steps:
        raise UserError(f"{path} is empty. Add steps, such as rotate: {{angle_range: [-9, 9]}}.")
    for step in steps:
        if step.op.kind == "crop":
            raise UserError(f"{path}.{step.key}: a crop cannot be nested. Make it the recipe's first step.")
        if step.mixes != steps[0].mixes:
            raise UserError(
                f"{path}.{step.key}: only one of '{steps[0].key}' and this step mixes samples. Nest only steps "
                "that mix samples, or only steps that do not mix samples."
            )
    return steps


def plain_steps(steps: tuple[Step, ...]) -> dict[str, dict[str, Any]]:
    """Return steps as a complete mapping of plain values, which `parse_steps` parses to the same steps."""
    return {step.key: _plain_step(step) for step in steps}


def _plain_step(step: Step) -> dict[str, Any]:
    plain: dict[str, Any] = {"op": step.op.name}
    if "p" in step.op.params:
        plain["p"] = step.p
    if step.weight != 1:
        plain["weight"] = step.weight
    # Leave out per_channel=false, because earlier versions wrote recipe files without it.
    plain |= {name: plain_value(value) for name, value in step.params.items() if (name, value) != _NOT_PER_CHANNEL}
    return plain | ({"steps": plain_steps(step.steps)} if step.op.nests else {})
