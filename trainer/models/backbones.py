"""Pretrained backbones of torchvision: whether their weights can be had is asked before a run begins."""

from pathlib import Path
from urllib.request import Request, urlopen

from augment.support.errors import UserError, first_line
from augment.support.lazy import torch
from trainer.models.base import Pretrained

_TIMEOUT = 10  # seconds
_BACKBONES = ("resnet50", "resnet101", "mobilenet_v3_large")  # which are in the names of the models


class Backbone(Pretrained):
    """Base of the models of torchvision that start from weights of their backbone."""

    name: str

    def downloads(self) -> str:
        """Return "pretrained" if the weights are asked for and not in PyTorch's cache."""
        return "pretrained" if self._missing() else ""

    def require_weights(self) -> None:
        """Check that the weights are in the cache or can be downloaded, within seconds."""
        if not (url := self._missing()):
            return
        try:
            urlopen(Request(url, method="HEAD"), timeout=_TIMEOUT).close()
        except OSError as error:
            raise UserError(
                f"model.pretrained=true: the backbone's weights of {self.name} are not in the cache and cannot be "
                f"downloaded ({first_line(error).rstrip('.')}). Allowed: model.weights=FILE; TORCH_HOME=DIR, a cache "
                f"with {url}, downloaded elsewhere; or model.pretrained=false."
            ) from error

    def _missing(self) -> str:
        """Return the URL of weights that would be downloaded; empty if none would."""
        backbone = next((known for known in _BACKBONES if known in self.name), "")
        if not self.loads or not backbone:
            return ""
        from torchvision.models import get_model_weights

        url = str(get_model_weights(backbone)["DEFAULT"].url)
        return "" if (Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]).exists() else url
