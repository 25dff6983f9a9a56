"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) for timm models. The package peft implements them.

Adapters are pairs of small matrices next to the layers, and learn a low-rank change of the weights. The head is also
trained. All other weights, called the base, stay fixed. After training, the adapters are merged into the weights, so
the result is a plain timm model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase

from augment.params import Count, Number, Texts, setting
from augment.support.errors import UserError, import_extra
from augment.support.formatting import list_some
from augment.support.lazy_torch import Tensor, nn

_TRANSFORMER = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # the linear layers in the blocks of transformers
_BASE = "lora_base_names"  # the attribute with the names of the tensors in a network's base


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Settings of the adapters."""

    rank: int = setting(Count(default=8, within=(1, 4096), aliases=("r",), doc="rank of each adapter"))
    alpha: float | None = setting(
        Number(
            optional=True,
            within=(0, 1e6),
            above=0,
            aliases=("lora_alpha",),
            doc="strength of the adapters. Their output is multiplied by alpha / rank. Default: the rank",
        )
    )
    dropout: float = setting(
        Number(default=0.0, within=(0, 0.99), aliases=("lora_dropout",), doc="dropout rate of the adapters' inputs")
    )
    targets: tuple[str, ...] = setting(
        Texts(
            default=(),
            aliases=("target_modules",),
            doc="layers that get adapters, as endings of names or as patterns, such as [qkv, blocks.1?.mlp.fc1]. "
            "Default: attn.qkv, attn.proj, mlp.fc1 and mlp.fc2 of transformers. In other networks, all linear layers "
            "and ungrouped convolutions except the head",
        )
    )


def add_adapters(network: nn.Module, settings: Lora) -> str:
    """Add adapters to a timm model, and freeze all other weights except the head. Return a sentence for the log.

    Raises:
        UserError: peft is missing, or the targets match no layer.
    """
    peft = import_extra("model.lora", "peft", "lora")
    names = _target_layers(network, settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or settings.rank,
        lora_dropout=settings.dropout,
        target_modules="|".join(map(re.escape, names)),
    )
    peft.inject_adapter_in_model(config, network, low_cpu_mem_usage=next(network.parameters()).is_meta)
    trained = {name: p for name, p in network.named_parameters() if ".lora_" in name or _in_head(network, name)}
    for parameter in trained.values():
        parameter.requires_grad_(True)
    setattr(network, _BASE, frozenset(network.state_dict().keys() - trained.keys()))
    layers = f"{len(names)} layers have adapters of rank {settings.rank}"
    return f"model.lora: {layers}. Only the adapters and the head are trained"


def _target_layers(network: nn.Module, given: tuple[str, ...]) -> list[str]:
    """Return the names of the layers that get adapters. Adapters of grouped convolutions could not be merged."""
    layers = []
    for name, module in network.named_modules():
        can_merge = isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
        if can_merge and not _in_head(network, name):
            layers.append(name)
    usual = _TRANSFORMER if any(name.endswith("attn.qkv") for name in layers) else ("*",)
    for pattern in given or usual[:1]:
        if not any(_matches(name, pattern) for name in layers):
            ends = dict.fromkeys(name.rpartition(".")[2] for name in layers)
            raise UserError(
                f"model.lora.targets: '{pattern}' matches no layer of {type(network).__name__}. Its linear layers and "
                f"ungrouped convolutions end in {list_some(ends, 12)}, such as {next(iter(layers), '(none)')}."
            )

    return [name for name in layers if any(_matches(name, pattern) for pattern in given or usual)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(f".{name}", f"*.{pattern}")


def _in_head(network: nn.Module, name: str) -> bool:
    """Return whether a tensor or module belongs to a head of a timm model. Some models have two heads."""
    heads = network.default_cfg["classifier"]  # type: ignore[index]
    heads = (heads,) if isinstance(heads, str) else heads
    return any(f"{name}.".startswith(f"{head}.") for head in heads)


def is_base(network: nn.Module, name: str) -> bool:
    """Return whether a tensor belongs to the base of a network with adapters."""
    return name in getattr(network, _BASE, ())


def base_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the base, or an empty mapping without adapters."""
    return {name: tensor for name, tensor in network.state_dict().items() if is_base(network, name)}


def trained_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the state of a network without the tensors of its base."""
    state = network.state_dict()
    for name in base_state(network):
        del state[name]
    return state


def plain_copy(network: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a network with a given state, and with the adapters merged into its weights."""
    copy = deepcopy(network)
    copy.load_state_dict(state)
    for name, layer in [*copy.named_modules()]:
        if hasattr(layer, "get_base_layer"):
            layer.merge()
            copy.set_submodule(name, layer.get_base_layer())
    return copy


def plain_state(network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state with the adapters merged into the weights. Without adapters, return it unchanged."""
    return plain_copy(network, state).state_dict() if hasattr(network, _BASE) else state
