"""Optimizers by name: PyTorch's SGD and AdamW, Muon, and all timm optimizers."""

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from augment.params import check_known
from augment.support.errors import UserError, first_line, nearest, plugin_hint
from augment.support.torch_versions import keep_eager, step_eagerly
from augment.support.user_code import registering
from trainer.optim.layers import layer_of, matches
from trainer.optim.muon import Muon, hidden_matrices
from trainer.optim.settings import OptimizerSettings

Factory = TypeVar("Factory", bound=Callable[..., Optimizer])

# Optimizers that do not need timm, whose import takes seconds. Plugins add their optimizers here.
_REGISTERED: dict[str, Callable[..., Optimizer]] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "muon": Muon}

# Replaces a default momentum of 0, as in `timm.optim.create_optimizer_v2`.
_MOMENTUM = 0.9

# Options that select an implementation. They depend on the device, so they are not restored from a checkpoint.
IMPLEMENTATION = ("fused", "foreach", "capturable")

# Arguments that are not allowed as options, because other settings determine them.
_NOT_OPTIONS = ("params", "lr", "weight_decay", "momentum", "betas", "beta2", "eps", "nesterov", *IMPLEMENTATION)

# Optimizers with fused kernels in PyTorch. On a GPU, the kernels decide whether to skip a step, so the host does not
# wait.
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def optimizer(name: str) -> Callable[[Factory], Factory]:
    """Register an optimizer class, or a function that makes an optimizer, under a name for `fit.optimizer`.

    The class or function is called with `lr` and parameter groups, which have their own `lr` and `weight_decay`. If its
    signature has `momentum`, `betas`, `eps`, `beta2` or `nesterov`, their values come from the settings with these
    names. Other arguments come from `fit.optimizer_options`. CUDA graphs record the steps of a class with
    `capturable = True`.
    """
    return registering(_REGISTERED, "optimizer", name)


def make_optimizer(settings: OptimizerSettings, network: nn.Module) -> Optimizer:
    """Make the optimizer of a network. The parameters must already be on their device.

    Raises:
        UserError: an unknown optimizer, a missing package, or a setting that the optimizer does not support.
    """
    make, preset = _find(settings.optimizer)
    takes = signature(make).parameters
    options = settings.optimizer_options or {}
    check_known(options, {name: None for name in takes if name not in _NOT_OPTIONS}, "fit.optimizer_options")
    arguments = {**preset, **_own_arguments(settings, takes), **options}
    cuda = any(p.is_cuda for p in network.parameters())
    if make in _FUSED:
        arguments["fused" if cuda else "foreach"] = True
        if "capturable" in takes:
            arguments["capturable"] = cuda
    keep_eager()
    orthogonal = hidden_matrices(network) if make is Muon else None
    groups = parameter_groups(network, settings, orthogonal)
    try:
        optimizer = make(groups, lr=settings.lr, **arguments)
    except (ValueError, TypeError, AssertionError, ImportError, RuntimeError) as error:
        raise UserError(f"fit.optimizer={settings.optimizer}: {first_line(error)}.") from error
    if make in _FUSED:
        step_eagerly(optimizer)
    optimizer.register_load_state_dict_pre_hook(_keep_implementation)
    return optimizer


def parameter_groups(
    network: nn.Module, settings: OptimizerSettings, orthogonal: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Group the parameters of a network by weight decay and learning rate.

    Args:
        network: the network.
        settings: settings of the optimizer.
        orthogonal: names of the parameters that Muon orthogonalizes. None: the optimizer is not Muon.

    Returns:
        Groups with `weight_decay`, `lr` and `lr_scale`, the group's factor of the learning rate. Groups nearest to the
        head come first. For Muon, groups also have `orthogonal`, and the groups of its matrices come before all others.
    """
    without_decay: Collection[str] = getattr(network, "no_weight_decay", set)()
    layers = layer_of(network) if settings.layer_decay is not None else {}
    head = max(layers.values(), default=0)
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for name, param in network.named_parameters():
        is_excluded = param.ndim <= 1 or name.endswith(".bias") or matches(name, without_decay)
        decay = 0.0 if is_excluded and not settings.decay_norms else settings.weight_decay
        scale = (settings.layer_decay or 1.0) ** (head - layers.get(name, head))
        auxiliary = orthogonal is not None and name not in orthogonal
        groups.setdefault((auxiliary, scale, decay), []).append(param)
    param_groups: list[dict[str, Any]] = []
    for auxiliary, scale, decay in sorted(groups, key=lambda key: (key[0], -key[1], -key[2])):
        params = groups[auxiliary, scale, decay]
        param_groups.append({"params": params, "weight_decay": decay, "lr": settings.lr * scale, "lr_scale": scale})
        if orthogonal is not None:
            param_groups[-1]["orthogonal"] = not auxiliary
    return param_groups


def set_value(group: dict[str, Any], name: str, value: float) -> None:
    """Set a scheduled value in a parameter group. A tensor is set in place, because CUDA graphs read it.

    The learning rate is multiplied by the group's `lr_scale`. In a group without "momentum", the value for "momentum"
    becomes the first of `betas`.
    """
    if name == "lr":
        value *= group.get("lr_scale", 1.0)
    if name == "momentum" and name not in group:
        group["betas"] = (value, *group["betas"][1:])
    elif isinstance(group.get(name), Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _find(name: str) -> tuple[Callable[..., Optimizer], Mapping[str, Any]]:
    """Return an optimizer's class or function, and the arguments that its name implies."""
    if name in _REGISTERED:
        return _REGISTERED[name], {}
    from timm import optim

    known = optim.list_optimizers()
    if name not in known:
        raise UserError(
            f"fit.optimizer: unknown optimizer '{name}'.{nearest(name, [*_REGISTERED, *known])} Set one of "
            f"{', '.join(_REGISTERED)}, or one of the {len(known)} names that timm.optim.list_optimizers() returns."
            f" {plugin_hint('optimizer')}"
        )
    info = optim.get_optimizer_info(name)
    if info.second_order:
        raise UserError(
            f"fit.optimizer={name}: it needs second derivatives, which the training loop does not compute. Set another "
            "fit.optimizer."
        )
    try:
        return optim.get_optimizer_class(name, bind_defaults=False), dict(info.defaults or {})
    except (ImportError, AssertionError) as error:
        raise UserError(f"fit.optimizer={name}: {first_line(error)}.") from error


def _own_arguments(settings: OptimizerSettings, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the optimizer's arguments that come from `fit.momentum`, `beta2`, `eps` and `nesterov`."""
    given = {name: getattr(settings, name) for name in ("momentum", "beta2", "eps", "nesterov")}
    if "momentum" in parameters and given["momentum"] is None:
        default = parameters["momentum"].default
        given["momentum"] = _MOMENTUM if default in (0, Parameter.empty) else default
    betas = list(parameters["betas"].default or ()) if "betas" in parameters else []
    for number, name in enumerate(("momentum", "beta2")[: len(betas)]):
        if name not in parameters and (value := given.pop(name)) is not None:
            betas[number] = value
    arguments = {name: value for name, value in given.items() if value is not None}
    if unknown := next((name for name in arguments if name not in parameters), None):
        raise UserError(f"fit.{unknown}={arguments[unknown]}: {settings.optimizer} has no {unknown}. Set it to null.")
    if betas:
        arguments["betas"] = tuple(betas)
    return arguments


def _keep_implementation(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Keep the implementation options of this device when a state is loaded."""
    own = {key: optimizer.defaults[key] for key in IMPLEMENTATION if key in optimizer.defaults}
    return {**state, "param_groups": [{**group, **own} for group in state["param_groups"]]}
