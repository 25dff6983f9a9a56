"""All timm models."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from augment.params import PASSES, Flag, Nested, OptionMap, Size, Text, check_known, setting
from augment.support.errors import UserError, first_line, nearest, suggest
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.models.base import Channels, Pretrained, model
from trainer.models.lora import Lora, add_adapters

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # names of weight files on the hub

# Arguments of timm models that are not allowed as options. Other settings replace them, or they would change the inputs
# or outputs.
_NOT_OPTIONS = {
    "pretrained": "Set model.pretrained instead.",
    "checkpoint_path": "Set model.weights instead.",
    "pretrained_cfg": "Set model.name=MODEL.WEIGHTS instead.",
    "pretrained_cfg_overlay": "Set model.name=MODEL.WEIGHTS or model.weights instead.",
    "num_classes": "Remove it, because the data determines the number of classes.",
    "in_chans": "Remove it, because the data determines the number of channels.",
    "features_only": "Remove it, because the model must return one output per class.",
}


@model("timm")
@dataclass(frozen=True, kw_only=True)
class Timm(Pretrained):
    """A timm model, selected by its name."""

    name: str = setting(Text(required=True, doc="name of a timm model, such as resnet18 or convnext_tiny.fb_in22k"))
    pretrained: bool = setting(
        Flag(default=False, doc="start from timm's weights, which are downloaded once. model.weights takes precedence")
    )
    options: Mapping[str, Any] | None = setting(
        OptionMap(
            optional=True,
            doc="arguments of timm.create_model, such as {drop_path_rate: 0.1, global_pool: max}",
            reach=PASSES,
        )
    )
    checkpointing: bool = setting(
        Flag(
            default=False, doc="recompute activations in the backward pass, which saves memory but costs a forward pass"
        )
    )

    lora: Lora | None = setting(  # noqa: RUF009
        Nested(
            of=Lora,
            optional=True,
            doc="train small low-rank adapters (peft) and the head, with all other weights fixed. "
            "Useful with pretrained weights",
        )
    )

    def build(self, classes: int, size: Size, channels: int = 3) -> "nn.Module":
        network = self.create(size, channels, num_classes=classes)
        if self.weights or (self.loads and classes != self._weights().num_classes):  # the head is new
            _start_from_zero(network)
        if self.checkpointing:
            try:
                network.set_grad_checkpointing(True)  # type: ignore[operator]
            except (AttributeError, AssertionError) as error:
                raise UserError(
                    f"model.checkpointing=true: {self.name} does not support gradient checkpointing. Set it to false."
                ) from error
        return network

    def adapt(self, network: "nn.Module") -> str:
        return add_adapters(network, self.lora) if self.lora else ""

    def create(self, size: Size, channels: int = 3, **options: Any) -> "nn.Module":
        """Create the network with `options` as further timm arguments. A fixed input size is set to `size`.

        timm adapts pretrained weights to the number of channels.
        """
        import timm

        self._require_name(timm)
        if timm.get_pretrained_cfg(self.name, allow_unregistered=True).fixed_input_size:
            options["img_size"] = size.height if size.is_square else tuple(size)
        if channels != 3:
            options["in_chans"] = channels
        self.require_weights()
        own = {name: tuple(v) if isinstance(v, list) else v for name, v in (self.options or {}).items()}
        for option in own:
            if option in _NOT_OPTIONS:
                raise UserError(f"model.options.{option}: not allowed. {_NOT_OPTIONS[option]}")
        try:
            network: nn.Module = timm.create_model(self.name, pretrained=self.loads, **{**options, **own})
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"model.name={self.name}: {first_line(error)}") from error
        except (TypeError, AssertionError) as error:
            if not own:
                raise
            # timm's functions hide the arguments of the class, so find the class.
            with torch.device("meta"):
                parameters = signature(type(timm.create_model(self.name))).parameters
            check_known(own, {name: None for name in parameters if name not in _NOT_OPTIONS}, "model.options")
            raise UserError(
                f"model.options: {self.name} does not accept them ({first_line(error)}). Change or remove them."
            ) from error
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return the normalization for timm's weights, even if `weights` names another file."""
        if not self.pretrained and self.weights is None:
            return None
        config = self._weights()
        return tuple(config.mean), tuple(config.std)

    def download_url(self) -> str | None:
        """Return the URL of the weights on the hub, unless they are cached."""
        hub_id = self._weights().hf_hub_id if self.loads else None
        if hub_id is None:
            return super().download_url()
        from huggingface_hub import hf_hub_url, try_to_load_from_cache

        repository, _, tag = hub_id.partition("@")
        for name in _WEIGHT_FILES:
            if isinstance(try_to_load_from_cache(repository, name, revision=tag or None), str):
                return ""
        return hf_hub_url(repository, _WEIGHT_FILES[0], revision=tag or None)

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Convert the tensors with timm's filter for this model, which for example resizes position embeddings."""
        convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
        return tensors if convert is None else convert(dict(tensors), network)

    def _weights(self) -> Any:
        """Return timm's configuration of the weights."""
        import timm

        self._require_name(timm)
        return timm.get_pretrained_cfg(self.name)

    def _require_name(self, timm: Any) -> None:
        known = timm.list_models()
        architecture = self.name.split(".")[0]
        if architecture not in known:
            raise UserError(
                f"model.name: unknown model '{self.name}'.{nearest(architecture, known)} timm.list_models() lists the "
                f"{len(known)} allowed names."
            )
        weights = timm.list_pretrained(f"{architecture}.*")
        if self.pretrained and not weights:
            raise UserError(
                f"model.pretrained=true: timm has no weights for '{self.name}'. Set model.pretrained=false."
            )
        if "." in self.name and self.name not in weights:
            raise UserError(f"model.name: unknown weights '{self.name}'.{suggest(self.name, weights)}")


def _start_from_zero(network: "nn.Module") -> None:
    """Set the weights of the head to zero (Kolesnikov et al. 2020, arXiv:1912.11370).

    The random head of some networks, such as EfficientNet, would distort the pretrained features in the first steps.
    """
    head = network.get_classifier()  # type: ignore[operator]
    if isinstance(head, nn.Linear):
        nn.init.zeros_(head.weight)
