"""Everything that timm has, by its name there."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from augment.params import Flag, Size, Text, setting
from augment.support.errors import UserError, first_line, suggest
from trainer.models.base import Channels, Model, model

if TYPE_CHECKING:
    from torch import Tensor, nn


@model("timm")
@dataclass(frozen=True, kw_only=True)
class Timm(Model):
    """A model of timm, by its name there."""

    name: str = setting(Text(required=True, doc="a model of timm, such as resnet18 or convnext_tiny.fb_in22k"))
    pretrained: bool = setting(
        Flag(default=False, doc="start from timm's weights, which are downloaded once; model.weights takes precedence")
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build it, with a new head for the classes.

        Raises:
            UserError: timm has no such model or weights, or they cannot be downloaded.
        """
        return self.create(size, num_classes=classes)

    def create(self, size: Size, **options: Any) -> "nn.Module":
        """Create it with options of timm, for images of a size if it has a fixed one; see `build`."""
        import timm

        self._require_name(timm)
        if timm.get_pretrained_cfg(self.name, allow_unregistered=True).fixed_input_size:
            options["img_size"] = size.height if size.is_square else tuple(size)
        self.require_weights()
        try:
            network: nn.Module = timm.create_model(self.name, pretrained=self._downloads, **options)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"model.name={self.name}: {first_line(error)}") from error
        return network

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return those of the pretrained weights, also for a file of weights."""
        if not self.pretrained and self.weights is None:
            return None
        config = self._weights()
        return tuple(config.mean), tuple(config.std)

    def untrained(self) -> "Timm":
        """Return the same model without weights to read or download."""
        return replace(self, pretrained=False, weights=None)

    def downloads(self) -> str:
        """Return "pretrained" if the weights are not in the cache."""
        if not self._downloads:
            return ""
        from trainer.models.pretrained import is_cached

        hub_id = self._weights().hf_hub_id
        return "" if hub_id is not None and is_cached(hub_id) else "pretrained"

    def require_weights(self) -> None:
        """Check that the pretrained weights are in the cache or can be downloaded, within seconds."""
        if self._downloads:
            from trainer.models.pretrained import require_reachable

            require_reachable(self.name, self._weights())

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Return the tensors as timm converts them for this model, such as position embeddings of another size."""
        convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
        return tensors if convert is None else convert(dict(tensors), network)

    @property
    def _downloads(self) -> bool:
        return self.pretrained and self.weights is None

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
