"""Where a model of classes looks: class activation maps by captum's LayerGradCam (Selvaraju 2017, arXiv:1610.02391)."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from augment.support.errors import UserError, missing_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

_BATCH = 16  # images at once, as gradients take memory
_SHARE = 0.55  # of the color where the map is highest


def installed() -> bool:
    """Return whether captum is."""
    return find_spec("captum") is not None


def require_captum(key: str) -> None:
    """Raise a UserError about what `key` needs unless captum is installed."""
    if not installed():
        raise missing_package(key, "captum", "explain")


def class_maps(network: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return where a network finds the class of each image, (N, height, width) in [0, 1].

    Args:
        network: (N, 3, height, width) -> (N, classes); its mode is left as it is.
        images: (N, 3, height, width).
        classes: (N,) indices.

    Raises:
        UserError: the network has no feature map, see `feature_layer`.
    """
    import torch
    from captum.attr import LayerGradCam
    from torch.nn.functional import interpolate

    with torch.inference_mode(False), torch.enable_grad():
        # What is made in inference mode has no gradients.
        images, classes = images.float().clone().requires_grad_(), classes.clone()
        seen = LayerGradCam(network, feature_layer(network, images[:1]))
        parts = zip(torch.split(images, _BATCH), torch.split(classes, _BATCH), strict=True)
        found = [seen.attribute(part, target=of, relu_attributions=True).detach() for part, of in parts]
        maps = interpolate(torch.cat(found), images.shape[2:], mode="bilinear")[:, 0]
    return maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def feature_layer(network: nn.Module, images: Tensor) -> nn.Module:
    """Return the module that makes the last feature map, (N, channels, height, width), before the pooling.

    Raises:
        UserError: there is none: the network ends in tokens, (N, L, channels), or has maps of another layout.
    """
    import torch

    made: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            made.append((module, output))

    handles = [module.register_forward_hook(keep) for module in network.modules()]
    try:
        with torch.no_grad():
            network(images)
    finally:
        for handle in handles:
            handle.remove()
    channels = getattr(network, "num_features", None)  # of timm's models
    for module, output in reversed(made):
        if output.ndim == 3:
            break
        if output.ndim == 4 and max(output.shape[2:]) > 1 and channels in (None, output.shape[1]):
            return module
    raise UserError(f"model: {type(network).__name__} makes no map of features. Allowed: convolutional models.")


def with_weights(network: nn.Module, state: Mapping[str, Any]) -> nn.Module:
    """Return a copy of a network with other weights, to evaluate."""
    copied = deepcopy(network).eval()
    copied.load_state_dict(state)
    return copied


def overlay(pixels: NDArray[np.uint8], values: NDArray[np.float32]) -> Image.Image:
    """Return an image, (height, width, 3), below a map, (height, width) in [0, 1]: nothing at 0, yellow at 1."""
    from matplotlib import colormaps

    colors, share = colormaps["inferno"](values)[..., :3] * 255, _SHARE * values[..., None]
    return Image.fromarray((pixels * (1 - share) + colors * share).round().astype(np.uint8))
