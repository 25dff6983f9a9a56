"""Class activation maps of classifiers, with captum's LayerGradCam (Selvaraju et al. 2017, arXiv:1610.02391)."""

import logging
from collections.abc import Sequence
from contextlib import closing
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

from augment.data.dataset import ImageRef
from augment.data.images import open_image, to_rgb
from augment.pipeline.batch import as_pixels
from augment.pipeline.graph.sample_order import Order, RankShard
from augment.pipeline.loader import Loader
from augment.support.errors import UserError, first_line
from augment.support.files import write_atomically
from augment.support.formatting import percent
from trainer.loop.callback import Callback
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.loop.learner import Learner
from trainer.models.lora import plain_copy
from trainer.predictions.masks import upright
from trainer.tasks.classify import ClassSamples
from trainer.tasks.metric import Samples

_BATCH = 16  # maximum number of images per batch. Their gradients need memory
_OPACITY = 0.55  # opacity of the map at its maximum
_MAX_PIXELS = 2**20  # maximum number of pixels to draw at once

log = logging.getLogger(__name__)


class MapWriter(Callback):
    """Writes each image of a pass with a map of its predicted class as a PNG file, see `draw_map`.

    The batches must have frames. `names` are the names of the classes.
    """

    def __init__(self, images: Sequence[ImageRef], files: Sequence[Path], names: Sequence[str]) -> None:
        self._images, self._files, self._names = images, files, names

    def after_batch(self, learner: Learner) -> None:
        batch = learner.batch
        assert batch.frames is not None
        probabilities, classes = learner.task.activate(learner.output.float()).max(dim=1)
        maps = class_maps(learner.model, batch.images, classes).cpu().numpy()
        columns = batch.indices.tolist(), classes.tolist(), probabilities.tolist(), maps, batch.frames.cpu()
        for number, label, probability, values, frame in zip(*columns, strict=True):
            with open_image(self._images[number]) as image:
                pixels = np.asarray(to_rgb(image))
            matrix = (frame @ upright(self._images[number])[0]).numpy()
            title = f"{self._names[label]} {percent(probability, 1)}"
            content = BytesIO()
            Image.fromarray(draw_map(pixels, values, matrix, title)).save(content, "PNG")
            write_atomically(self._files[number], content.getvalue())


def maps_of(learner: Learner, samples: Samples, positions: Sequence[int]) -> list[Image.Image]:
    """Return class activation maps of the best model for some validation samples, drawn on the images.

    The list is empty without captum, for tasks other than classification, and for models without a feature map.
    """
    loader, folder = learner.val_loader, learner.folder
    if not (positions and folder and isinstance(samples, ClassSamples) and isinstance(loader, Loader)):
        return []
    if not find_spec("captum"):
        return []
    indices, classes = samples.index[[*positions]].tolist(), samples.prediction[[*positions]]
    files = tuple(loader.split.files[i] for i in indices)
    targets = tuple(loader.split.targets[i] for i in indices)
    split = replace(loader.split, files=files, targets=targets, repeated=0, left_out=())
    order = Order(min(loader.batch_size, len(files)), 0, RankShard(0, 1), False)
    overlay_of = dict[int, Image.Image]()
    try:
        network = plain_copy(learner.model, learner.model.state_dict()).eval()
        network.load_state_dict(load(folder / BEST, BestModel).model)
        # Decode on the CPU, because another decoder on the GPU would take longer to start.
        placement = loader.placement.on(torch.device("cpu"), loader.placement.threads)
        with closing(Loader(loader.plan, split, order, placement, classes=loader.classes)) as sample_loader:
            for batch in sample_loader:
                maps = class_maps(network, batch.images, classes[batch.indices].to(learner.device)).cpu().numpy()
                overlays = map(overlay, as_pixels(batch.images, loader.plan), maps)
                overlay_of |= zip(batch.indices.tolist(), overlays, strict=True)
        return [overlay_of[number] for number in range(len(files))]
    except Exception as error:  # a report without maps is better than no report
        log.info("no class activation maps: %s", first_line(error))
        return []


def class_maps(network: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return the class activation map of each image, (N, height, width) in [0, 1].

    Args:
        network: maps (N, 3, height, width) to (N, classes). Its mode does not change.
        images: (N, 3, height, width).
        classes: (N,) indices.

    Raises:
        UserError: the network has no feature map, see `feature_layer`.
    """
    from captum.attr import LayerGradCam

    with torch.inference_mode(False), torch.enable_grad():
        # Copies, because tensors made in inference mode have no gradients.
        images, classes = images.float().to(classes.device, copy=True).requires_grad_(), classes.clone()
        grad_cam = LayerGradCam(network, feature_layer(network, images[:1]))
        coarse = []
        for batch, labels in zip(torch.split(images, _BATCH), torch.split(classes, _BATCH), strict=True):
            coarse.append(grad_cam.attribute(batch, target=labels, relu_attributions=True).detach())
        maps = F.interpolate(torch.cat(coarse), images.shape[2:], mode="bilinear")[:, 0]
    return maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def feature_layer(network: nn.Module, images: Tensor) -> nn.Module:
    """Return the module that computes the last feature map, (N, channels, height, width), before the pooling.

    Raises:
        UserError: the network ends in tokens, (N, L, channels), or its feature maps have another layout.
    """
    outputs: list[tuple[nn.Module, Tensor]] = []

    def record(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.append((module, output))

    handles = [module.register_forward_hook(record) for module in network.modules()]
    try:
        with torch.no_grad():
            network(images)
    finally:
        for handle in handles:
            handle.remove()
    channels = getattr(network, "num_features", None)  # only timm models have it
    for module, output in reversed(outputs):
        if output.ndim == 3:
            break
        if output.ndim == 4 and max(output.shape[2:]) > 1 and channels in (None, output.shape[1]):
            return module
    raise UserError(f"model: {type(network).__name__} has no feature map. Use a convolutional model.")


def overlay(pixels: NDArray[np.uint8], values: NDArray[np.float32]) -> Image.Image:
    """Draw a map, (height, width) in [0, 1], on an image, (height, width, 3). 0 is transparent, 1 is yellow."""
    from matplotlib import colormaps

    colors, opacity = colormaps["inferno"](values)[..., :3] * 255, _OPACITY * values[..., None]
    return Image.fromarray((pixels * (1 - opacity) + colors * opacity).round().astype(np.uint8))


def draw_map(
    pixels: NDArray[np.uint8], values: NDArray[np.float32], frame: NDArray[np.float64], title: str
) -> NDArray[np.uint8]:
    """Draw a map on the image that it belongs to, with a title and a scale below it.

    Pixels outside the model's input are pale. A very small image is enlarged, and a huge one is reduced.

    Args:
        pixels: the upright image, (height, width, 3).
        values: the map of the model's input, (rows, columns) in [0, 1].
        frame: the matrix from pixels of the image to pixels of the input, (3, 3).
        title: the text below the image.
    """
    from augment.drawing.target_overlays import Drawing, with_legend, with_scale  # with Matplotlib

    drawing = Drawing.readable(pixels)
    plain, (height, width, _) = drawing.pixels, drawing.pixels.shape
    # Pillow puts pixel centers at 0.5, and frames put them at integers.
    center = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    to_image = np.diag([pixels.shape[1] / width, pixels.shape[0] / height, 1])
    matrix = center @ frame @ np.linalg.inv(center) @ to_image
    transform = (width, height), Image.Transform.PERSPECTIVE, (matrix / matrix[2, 2]).ravel()[:8].tolist()
    warped = np.asarray(Image.fromarray(values).transform(*transform, Image.Resampling.BILINEAR, fillcolor=-1))
    drawn, rows = Image.new("RGB", (width, height)), max(1, _MAX_PIXELS // width)
    for top in range(0, height, rows):
        band = slice(top, top + rows)
        drawn.paste(overlay(plain[band], warped[band].clip(0)), (0, top))
    unseen = warped[..., None] < 0
    pale = plain // 2 + 128
    entries = [(None, title)]
    if unseen.any():
        entries.append((None, "pale: outside the crop"))
    with_title = with_legend(np.where(unseen, pale, np.asarray(drawn)), entries, drawing.weight)
    colors = overlay(np.full((1, 64, 3), 128, np.uint8), np.linspace(0, 1, 64, dtype=np.float32)[None])
    return with_scale(with_title, np.asarray(colors), drawing.weight)
