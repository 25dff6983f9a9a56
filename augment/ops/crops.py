"""Crop ops: which part of the picture becomes (size, size)."""

from typing import TYPE_CHECKING, Any

from augment.params import Choice, Count, Interval, Number, Range
from augment.registry import crop

if TYPE_CHECKING:
    from augment.graph import Picture

# What DALI's padding knows, which is all borders but wrap.
_PADDINGS = ("reflect_101", "constant", "replicate")

_FILL = Count(default=0, within=(0, 255), doc="gray level beyond the edge with border constant")


@crop(
    side=Choice(
        default="both",
        options=("both", "short", "long"),
        doc="what becomes as long as the square: both sides; the short one, what protrudes is cut; the long one, the "
        "rest is black",
    )
)
def resize(picture: "Picture", size: int, side: str) -> Any:
    """Resize the whole picture to the square, whatever its aspect ratio, or keeping it."""
    if side == "long":
        return picture.letterbox(size, "constant", 0)
    image = picture.decode()
    window = picture.centered_square(image, 1.0) if side == "short" else None
    return picture.resize(image, size, window=window)


@crop(
    random=True,
    area_range=Range(
        default=(0.35, 1.0),
        within=(0, 1),
        above=0,
        few=False,
        doc="area of the window over that of the picture; the low end is what others call min_scale",
    ),
    aspect_range=Range(
        default=(3 / 4, 4 / 3), within=(0.01, 100), few=False, doc="width of the window over its height"
    ),
)
def random_resized_crop(picture: "Picture", size: int, area_range: Interval, aspect_range: Interval) -> Any:
    """Cut a window of random area, aspect ratio and place, and resize it to the square (Szegedy et al. 2015)."""
    return picture.resize_random_window(size, area_range, aspect_range)


@crop(
    random=True,
    scale=Number(default=1.0, within=(0, 1), above=0, doc="side of the square over the picture's short side"),
    padding=Number(default=0.125, within=(0, 0.5), doc="how far the square may reach beyond the edge, over its side"),
    border=Choice(default="reflect_101", options=_PADDINGS, doc="what lies beyond the edge of the picture"),
    fill=_FILL,
)
def random_crop(picture: "Picture", size: int, scale: float, padding: float, border: str, fill: int) -> Any:
    """Cut a square of fixed scale at a random place, also beyond the edge of the picture, and resize it."""
    return picture.random_square(size, scale, padding, border, fill)


@crop(scale=Number(default=1.0, within=(0, 1), above=0, doc="side of the square over the picture's short side"))
def center_crop(picture: "Picture", size: int, scale: float) -> Any:
    """Cut a centered square, measured against each picture's own short side, and resize it."""
    image = picture.decode()
    return picture.resize(image, size, window=picture.centered_square(image, scale))


@crop(border=Choice(default="constant", options=_PADDINGS, doc="what is put beside the picture"), fill=_FILL)
def letterbox(picture: "Picture", size: int, border: str, fill: int) -> Any:
    """Resize the whole picture so that its long side fits the square, and center it."""
    return picture.letterbox(size, border, fill)
