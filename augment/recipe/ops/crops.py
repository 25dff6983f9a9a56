"""Crop ops, which cut a window out of an image and resize it to the output size (height, width)."""

from typing import TYPE_CHECKING, Any

from augment.params import Choice, Interval, Number, Range, Size
from augment.recipe.op import crop
from augment.recipe.op_kinds import BORDER_DOC, FILL

if TYPE_CHECKING:
    from augment.pipeline.graph.decoding import GraphImage

# DALI's padding supports every border except wrap.
_PADDINGS = ("reflect_101", "constant", "replicate")


@crop(
    side=Choice(
        default="both",
        options=("both", "short", "long"),
        doc="sides to fit: both (ignores the aspect ratio), short (cuts off the rest) or long (pads with black)",
    )
)
def resize(source: "GraphImage", size: Size, side: str) -> Any:
    """Resize the image to the output size: ignore its aspect ratio, cut off the rest, or pad."""
    if side == "long":
        return source.letterbox(size, "constant", 0)
    image = source.decode()
    window = source.centered_window(image, size, 1.0) if side == "short" else None
    return source.resize(image, size, window=window)


@crop(
    random=True,
    area_range=Range(
        default=(0.35, 1.0),
        within=(0, 1),
        above=0,
        few=False,
        doc="window area as a share of the image. The lower bound is fastai's min_scale",
    ),
    aspect_range=Range(
        default=(3 / 4, 4 / 3),
        within=(0.01, 100),
        few=False,
        doc="width of the window in the image divided by its height, in pixels",
    ),
)
def random_resized_crop(source: "GraphImage", size: Size, area_range: Interval, aspect_range: Interval) -> Any:
    """Cut a window of random area, aspect ratio and position, and resize it (Szegedy et al. 2015).

    The aspect ratio is log-uniform. If none of ten windows fits, the op uses the largest window with an allowed aspect
    ratio, at a random position. torchvision would center it.
    """
    return source.resize_random_window(size, area_range, aspect_range)


_SCALE = Number(
    default=1.0,
    within=(0, 1),
    above=0,
    doc="sides of the window, relative to the largest window with the output's aspect ratio",
)


@crop(
    random=True,
    scale=_SCALE,
    padding=Number(
        default=0.125,
        within=(0, 0.5),
        doc="largest overhang beyond the image's edges, as a share of the window's sides",
    ),
    border=Choice(default="reflect_101", options=_PADDINGS, doc=BORDER_DOC),
    fill=FILL,
)
def random_crop(source: "GraphImage", size: Size, scale: float, padding: float, border: str, fill: int) -> Any:
    """Cut a window of fixed scale at a random position, possibly beyond the edges, and resize it."""
    return source.random_window(size, scale, padding, border, fill)


@crop(scale=_SCALE)
def center_crop(source: "GraphImage", size: Size, scale: float) -> Any:
    """Cut a centered window with the output's aspect ratio and resize it."""
    image = source.decode()
    return source.resize(image, size, window=source.centered_window(image, size, scale))


@crop(border=Choice(default="constant", options=_PADDINGS, doc="content of the rest of the output"), fill=FILL)
def letterbox(source: "GraphImage", size: Size, border: str, fill: int) -> Any:
    """Resize the whole image to fit into the output, center it and pad the rest."""
    return source.letterbox(size, border, fill)
