"""Everything that timm has, by its name there."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from augment.params import PASSES, Flag, OptionMap, Size, Text, check_known, setting
from augment.support.errors import UserError, first_line, suggest
from augment.support.lazy_torch import Tensor, nn, torch
from trainer.models.base import Channels, Pretrained, model

_NAMES = ("model.safetensors", "pytorch_model.bin")  # of weights on the hub

# Arguments of timm's models that are set elsewhere, or that would change what goes in or comes out.
_ELSEWHERE = {
    "pretrained": "model.pretrained",
    "checkpoint_path": "model.weights",
    "pretrained_cfg": "model.name=MODEL.WEIGHTS",
    "pretrained_cfg_overlay": "model.name=MODEL.WEIGHTS, or model.weights",
    "num_classes": "the classes of the data",
    "in_chans": "3 channels",
    "features_only": "false",
}


@model("timm")
@dataclass(frozen=True, kw_only=True)
class Timm(Pretrained):
    """A model of timm, by its name there."""

    name: str = setting(Text(required=True, doc="a model of timm, such as resnet18 or convnext_tiny.fb_in22k"))
    pretrained: bool = setting(
        Flag(default=False, doc="start from timm's weights, which are downloaded once; model.weights takes precedence")
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
            default=False, doc="compute activations again in the backward pass: less memory, but one more forward pass"
        )
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build it, with a new head for the classes."""
        network = self.create(size, num_classes=classes)
        if self.checkpointing:
            try:
                network.set_grad_checkpointing(True)  # type: ignore[operator]
            except (AttributeError, AssertionError) as error:
                text = f"model.checkpointing: true, but {self.name} has no gradient checkpointing. Allowed: false."
                raise UserError(text) from error
        return network

    def create(self, size: Size, **options: Any) -> "nn.Module":
        """Create it with options of timm, for images of a size if it has a fixed one; see `build`."""
        import timm

        self._require_name(timm)
        if timm.get_pretrained_cfg(self.name, allow_unregistered=True).fixed_input_size:
            options["img_size"] = size.height if size.is_square else tuple(size)
        self.require_weights()
        own = {name: tuple(v) if isinstance(v, list) else v for name, v in (self.options or {}).items()}
        if taken := next((name for name in own if name in _ELSEWHERE), None):
            raise UserError(f"model.options.{taken}: is set elsewhere. Allowed: {_ELSEWHERE[taken]}.")
        try:
            network: nn.Module = timm.create_model(self.name, pretrained=self.loads, **{**options, **own})
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"model.name={self.name}: {first_line(error)}") from error
        except (TypeError, AssertionError) as error:
            if not own:
                raise
            with torch.device("meta"):  # the signature of the model's class, as functions of timm hide it
                takes = signature(type(timm.create_model(self.name))).parameters
            check_known(own, {name: None for name in takes if name not in _ELSEWHERE}, "model.options")
            raise UserError(f"model.options: {self.name} cannot be made with them: {first_line(error)}.") from error
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return those of the pretrained weights, also for a file of weights."""
        if not self.pretrained and self.weights is None:
            return None
        config = self._weights()
        return tuple(config.mean), tuple(config.std)

    def missing(self) -> str | None:
        """Return the address of weights on the hub, unless they are in its cache."""
        hub_id = self._weights().hf_hub_id if self.loads else None
        if hub_id is None:
            return super().missing()
        from huggingface_hub import hf_hub_url, try_to_load_from_cache

        repository, _, tag = hub_id.partition("@")
        known = (try_to_load_from_cache(repository, name, revision=tag or None) for name in _NAMES)
        return (
            ""
            if any(isinstance(one, str) for one in known)
            else hf_hub_url(repository, _NAMES[0], revision=tag or None)
        )

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Return the tensors as timm converts them for this model, such as position embeddings of another size."""
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
            near = suggest(architecture, known).split(" Allowed:")[0]
            raise UserError(
                f"model.name: unknown model '{self.name}'.{near} "
                f"Allowed: one of the {len(known)} names that timm.list_models() gives."
            )
        weights = timm.list_pretrained(f"{architecture}.*")
        if self.pretrained and not weights:
            raise UserError(f"model.pretrained: timm has no weights for '{self.name}'. Allowed: false.")
        if "." in self.name and self.name not in weights:
            raise UserError(f"model.name: unknown weights '{self.name}'.{suggest(self.name, weights)}")
