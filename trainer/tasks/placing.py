"""Tasks whose outputs are places in an image, and where these are in the stored image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from augment.support.lazy import Tensor, torch
from trainer.tasks.metric import OutputSamples
from trainer.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from augment.drawing.targets import Drawing


@dataclass(frozen=True, eq=False)
class PlacedSamples(OutputSamples):
    """Places that a pass found in each sample.

    Attributes:
        frame: (N, 3, 3) float64, from pixels of the stored image to what targets and outputs are in.
    """

    frame: Tensor


class PlacedTask(Task[PlacedSamples]):
    """Base of the tasks whose outputs are places in an image."""

    samples = PlacedSamples

    def draw_places(self, sides: tuple[Drawing, Drawing], target: Tensor, output: Tensor, matrix: Tensor) -> None:
        """Draw the target and the output of a sample, each on its side; the matrix leads to pixels of these."""

    def draw(
        self, image: Image, place: NDArray[np.float64], samples: PlacedSamples, position: int, names: Sequence[str]
    ) -> Image:
        """Return the image beside itself: on the left what is there, on the right what was found."""
        import numpy as np
        from PIL import Image

        from augment.drawing.targets import Drawing

        sides = Drawing(np.asarray(image)), Drawing(np.asarray(image))
        matrix = torch.from_numpy(place) @ samples.frame[position].inverse()
        self.draw_places(sides, samples.target[position], samples.output[position], matrix)
        return Image.fromarray(np.concatenate([side.pixels for side in sides], axis=1))


def placed(points: Tensor, matrices: Tensor) -> Tensor:
    """Return points, (N, K, 2) float64, moved by a matrix for each image, (N, 3, 3)."""
    ends = torch.cat([points.double(), points.new_ones(*points.shape[:-1], 1).double()], dim=-1)
    found = ends @ matrices.double().transpose(1, 2)
    return found[..., :2] / found[..., 2:]
