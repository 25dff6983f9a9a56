"""Where models of classes look: class activation maps by captum's LayerGradCam (Selvaraju 2017, arXiv:1610.02391)."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from augment.pipeline.batch import Batch, as_pixels
from augment.pipeline.graph.sample_order import Order, RankShard
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan
from augment.support.errors import UserError, first_line
from augment.support.files import write_atomically
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.loop.learner import Learner
from trainer.tasks.classify import ClassSamples
from trainer.tasks.metric import Samples

_BATCH = 16  # images at once, as gradients take memory
_SHARE = 0.55  # of the color where the map is highest

log = logging.getLogger(__name__)


class MapWriter(Callback):
    """Writes each image of a pass as it was fed, and on it where the model finds the class that it predicts, as PNG."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def after_batch(self, learner: Learner) -> None:
        """Write those of the batch."""
        plan = learner.train_loader.plan
        for number, image in _overlays(learner.model, learner.batch, learner.output.argmax(dim=1), plan):
            content = BytesIO()
            image.save(content, "PNG")
            write_atomically(self._files[number], content.getvalue())


def maps_of(learner: Learner, samples: Samples, positions: Sequence[int]) -> list[Image.Image]:
    """Return where the best model finds what it predicts for some samples of validation, as images.

    None where nobody can say: without captum, without classes, or without a feature map.
    """
    loader, folder = learner.val_loader, learner.folder
    wanted = positions and find_spec("captum")
    if not (wanted and folder and isinstance(samples, ClassSamples) and isinstance(loader, Loader)):
        return []
    indices, classes = samples.index[[*positions]].tolist(), samples.prediction[[*positions]]
    files, targets = (tuple(of[i] for i in indices) for of in (loader.split.files, loader.split.targets))
    split = replace(loader.split, files=files, targets=targets, repeated=0, bad=(), left_out=())
    order = Order(min(loader.batch_size, len(files)), 0, RankShard(0, 1), False)
    try:
        network, images = deepcopy(learner.model).eval(), dict[int, Image.Image]()
        network.load_state_dict(load(folder / BEST, BestModel).model)
        # On the CPU, as another decoder on the GPU would take longer to begin than these few images.
        placement = loader.placement.on(torch.device("cpu"), loader.placement.threads)
        with closing(Loader(loader.plan, split, order, placement, classes=loader.classes)) as part:
            for batch in part:
                images |= _overlays(network, batch, classes[batch.indices].to(learner.device), loader.plan)
    except Exception as error:  # of a model of one's own, or of captum: a report without maps is better than none
        log.info("no maps of where the model looks: %s", first_line(error))
        return []
    return [images[number] for number in range(len(files))]


def _overlays(network: nn.Module, batch: Batch, classes: Tensor, plan: Plan) -> Iterator[tuple[int, Image.Image]]:
    maps = class_maps(network, batch.images, classes).cpu().numpy()
    for number, pixels, values in zip(batch.indices.tolist(), as_pixels(batch.images, plan), maps, strict=True):
        yield number, overlay(pixels, values)


def class_maps(network: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return where a network finds the class of each image, (N, height, width) in [0, 1].

    Args:
        network: (N, 3, height, width) -> (N, classes); its mode is left as it is.
        images: (N, 3, height, width).
        classes: (N,) indices.

    Raises:
        UserError: the network has no feature map, see `feature_layer`.
    """
    from captum.attr import LayerGradCam

    with torch.inference_mode(False), torch.enable_grad():
        # What is made in inference mode has no gradients.
        images, classes = images.float().to(classes.device, copy=True).requires_grad_(), classes.clone()
        seen = LayerGradCam(network, feature_layer(network, images[:1]))
        parts = zip(torch.split(images, _BATCH), torch.split(classes, _BATCH), strict=True)
        found = [seen.attribute(part, target=of, relu_attributions=True).detach() for part, of in parts]
        maps = F.interpolate(torch.cat(found), images.shape[2:], mode="bilinear")[:, 0]
    return maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def feature_layer(network: nn.Module, images: Tensor) -> nn.Module:
    """Return the module that makes the last feature map, (N, channels, height, width), before the pooling.

    Raises:
        UserError: there is none: the network ends in tokens, (N, L, channels), or has maps of another layout.
    """
    made: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
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


def overlay(pixels: NDArray[np.uint8], values: NDArray[np.float32]) -> Image.Image:
    """Return an image, (height, width, 3), below a map, (height, width) in [0, 1]: nothing at 0, yellow at 1."""
    from matplotlib import colormaps

    colors, share = colormaps["inferno"](values)[..., :3] * 255, _SHARE * values[..., None]
    return Image.fromarray((pixels * (1 - share) + colors * share).round().astype(np.uint8))
