"""Load a trained model and predict from Python."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from augment.cli.compose import Recipe
from augment.data.dataset import ImageRef
from augment.data.images import MemoryImage, as_ppm
from augment.data.rasters import Raster
from augment.params.pixel_format import PixelFormat
from augment.pipeline.images_in_memory import pixels_of
from augment.pipeline.transform import Transform
from augment.support.files import read_file
from augment.support.user_code import public
from trainer.predictions.predict import predict
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.run.folder.run_names import named_run
from trainer.tasks.display import Prediction


@dataclass(frozen=True, eq=False)
class _Encoded:
    """An encoded image in memory."""

    name: str
    content: bytes

    def read(self) -> bytes:
        return self.content


class TrainedModel:
    """The best model of a run, with its validation preprocessing. `load_model` returns it.

    Attributes:
        model: the network in evaluation mode. It maps (N, C, height, width) float images, as `preprocess` returns them,
            to outputs such as (N, classes) logits.
        classes: the names of the outputs, which are classes, labels, numbers or keypoints.
        folder: the folder of the run.
        thresholds: the probability threshold of each label, or of each class of a detector, chosen on validation data.
            Empty: the run has chosen none.
    """

    def __init__(self, trained: LoadedModel) -> None:
        self._trained = trained
        self._device = trained.config.fit.torch_device()
        self.model: nn.Module = trained.network.to(self._device).eval()
        self.classes = trained.classes
        self.folder, self.thresholds = trained.run, trained.thresholds
        self._pixels = trained.config.aug.pixels
        recipe = Recipe(trained.config.aug, trained.config.seed, (), trained.config.resolved)
        self._transform = Transform(recipe, split="val", device=self._device)

    def __repr__(self) -> str:
        return f"TrainedModel({str(self.folder)!r}, {self._trained.task.name}, {len(self.classes)} outputs)"

    @public
    def predict(self, images: Any, *, top: int | None = None, threshold: float | None = None) -> list[Prediction]:
        """Run the model on images. The results are the same as from `python -m trainer predict`.

        Args:
            images: an image, a list of images, or a uint8 batch, (N, height, width, 3). An image is a path, a Pillow
                image, an encoded image as bytes, or a uint8 array or tensor, (height, width, 3) RGB. A path may also
                name a folder. Arrays and tensors have the channels and the data type of the run's images.
            top: the number of classes or labels per image. Default: 3 classes, or the labels above the threshold.
            threshold: the lowest probability of a label or object. Default: `thresholds`, otherwise 0.5.

        Returns:
            A prediction for each image, in order. A folder's images are sorted by path. The mask of a segmentation
            model is in `labels`, (height, width) uint8, at the size of the image. 255 marks pixels that validation
            crops away. A detector's objects are in `objects.found`, with their boxes. With Mask R-CNN,
            they also have a `mask`, (height, width) bool.

        Raises:
            UserError: images of an unknown type, or no image that can be decoded.
        """
        return predict(self._trained, self._as_refs(_listed(images)), top=top, threshold=threshold)

    @public
    def preprocess(self, images: Any) -> Tensor:
        """Prepare images as in validation, (N, C, height, width), normalized, on the model's device.

        Args:
            images: see `predict`. Folders are not allowed.
        """
        given = _listed(images)
        if self._pixels.is_rgb and self._pixels.nodata is None:
            given = [read_file(Path(image)) if isinstance(image, str | Path) else image for image in given]
        else:
            given = [Raster(ref, self._pixels).read_pixels() for ref in self._as_refs(given)]
        prepared: Tensor = self._transform(given)
        return prepared

    def _as_refs(self, images: Sequence[Any]) -> list[ImageRef]:
        return [_as_ref(image, number, self._pixels) for number, image in enumerate(images)]


@public
def load_model(run: str | Path, *overrides: str, device: str = "auto", trust: bool = False) -> TrainedModel:
    """Load the best model of a run. This does not need the run's data.

    Args:
        run: the folder of the run, a name such as "last", or `hf://USER/NAME` or `hf://USER/NAME@REVISION` on the
            Hugging Face Hub.
        overrides: `key=value` overrides of the run's configuration, such as `fit.tta=flip`.
        device: "cuda" or "cpu". "auto" uses the GPU if there is one.
        trust: whether the run may name code to import, see SECURITY.md.

    Raises:
        UserError: the folder is not a run or has no checkpoint, or an override is not allowed.
    """
    return TrainedModel(
        load_best_model(named_run(Path(run)), [*overrides, f"fit.device={device}"], trust=trust, data=False)
    )


def _listed(images: Any) -> Sequence[Any]:
    not_listed = isinstance(images, str | bytes) or not isinstance(images, Iterable)
    return [images] if not_listed or getattr(images, "ndim", 1) in (0, 2, 3) else list(images)


def _as_ref(image: Any, number: int, pixels: PixelFormat) -> ImageRef:
    name = f"images[{number}]"
    if isinstance(image, str | Path):
        return Path(image)
    if isinstance(image, bytes):
        return _Encoded(name, image)
    array = pixels_of(image, number, pixels)
    return _Encoded(name, as_ppm(array)) if pixels.is_rgb else MemoryImage(name, array)
