"""A newly declared op, of kinds that no built-in one has, passes the checks that hold for all ops."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import op_checks as checks
import pytest
import torch
from generated import op_table
from op_cases import variants

from augment import Transform, UserError, load_recipe
from augment.data.dataset import ImageRef
from augment.params import Number, Range
from augment.recipe.op import OPS, batch, color, geometry, local, numpy_op, remap, torch_op
from trainer.cli.help import explain


def declare_numpy() -> None:
    @numpy_op(uniforms=("x",), level=Number(default=9.0, within=(0, 255), doc="gray level of the line"))
    def new_numpy(image: Any, x: float, level: float) -> Any:
        """Draw a line from top to bottom."""
        changed = image.copy()
        changed[:, int(x * image.shape[1])] = level
        return changed


def declare_torch() -> None:
    @torch_op(shift_range=Range(default=(1, 9), within=(0, 100), whole=True, unit="px", doc="how far down"))
    def new_torch(images: Any, shift: Any) -> Any:
        """Roll the image down."""
        return torch.stack([image.roll(int(by), 0) for image, by in zip(images, shift, strict=True)])


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("declare", [declare_numpy, declare_torch])
def test_a_new_op_is_an_op_like_any_other(
    declare: Callable[[], None], squares: tuple[ImageRef, ...], shapes: tuple[ImageRef, ...], device: torch.device
) -> None:
    before, table = set(OPS), op_table()
    declare()
    (name,) = set(OPS) - before
    op = OPS[name]
    (row,) = set(op_table().splitlines()) - set(table.splitlines())
    assert row.startswith(f"| `{name}` | {op.kind} | {op.doc} | ")
    lines = explain(name).splitlines()
    assert lines[0] == f"{name} ({op.kind}): {op.doc}"
    assert lines[0] in explain("all").splitlines()
    for parameter in op.own_params:
        assert f"`{parameter}` " in row
        assert any(line.strip().startswith(f"{parameter}: ") for line in lines)
    checks.check_draws(op)
    checks.check_rates(op)
    checks.check_resume(op, squares)
    for params in variants(op):
        checks.check_p_zero(op, params)
        checks.check_skipped(op, params, squares, device)
        checks.check_determinism(op, params, squares, device)
        checks.check_not_square(op, params, squares[:8])
        checks.check_shapes(op, params, squares[:8] + shapes, device)
        if device.type == "cuda":
            checks.check_devices(op, params, squares[:8] + shapes)


IMAGES = np.full((2, 8, 8, 3), 255, np.uint8)


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("declare", [numpy_op, torch_op])
def test_an_op_may_write_to_images_that_other_views_share(declare: Any, device: torch.device) -> None:
    @declare()
    def overwrite(images: Any) -> Any:
        """Overwrite the images, but return them as they were."""
        given = images + 0
        images[:] = 0
        return given

    other = {"share": ["resize"], "steps": {"overwrite": {}}}
    views = {"one": {"share": ["resize"], "steps": {"invert": {"p": 0}}}, "two": other, "three": other}
    recipe = load_recipe({"size": 8, "mean": [0, 0, 0], "std": [1, 1, 1], "train": {"resize": {}}, "views": views})
    made = Transform(recipe, device=device)(IMAGES)
    assert [view.mean().item() for view in made] == [1, 1, 1]


RANGE = Range(default=(0.2, 0.8), within=(0, 1), doc="anything")


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        (color, lambda a: np.eye(3), "op 'own' returned (3, 3) for N = 1. Return (N, 3, 4) or (N, 3, 7)."),
        (color, lambda a: np.full((3, 4), np.nan), "op 'own' returned a matrix with infinite or NaN entries."),
        (geometry, lambda size, a: np.eye(2, 3), "op 'own' returned (2, 3) for N = 1. Return (N, 3, 3)."),
        (geometry, lambda size, a: np.zeros((3, 3)), "aug: own: a matrix has no inverse. Change the parameters"),
        (batch, lambda x, y, a: x, "op 'own' returned Tensor. Return images and share, [(2, 3, 8, 8), (2,)]."),
        (batch, lambda x, y, a: (x[..., 1:], a), "op 'own' returned [(2, 3, 8, 7), (2,)]. Return images and share,"),
        (remap, lambda x, y, size, a: torch.stack([x, y], -1), "TypeError: op 'own' returned [(8, 8, 2), (8, 8, 2)]"),
        (numpy_op, lambda x, a: x * 0.5, "TypeError: op 'own' returned (8, 8, 3) float64 for (8, 8, 3) uint8. "
         f"Keep the shape and the type ({__file__}, line "),
        (numpy_op, lambda x, a: None, "TypeError: op 'own' returned nothing. Return the changed images"),
        (torch_op, lambda x, a: None, "TypeError: op 'own' returned nothing. Return the changed images"),
        (numpy_op, lambda x, a: x[a], "IndexError: only integers"),
    ],
)  # fmt: skip
def test_what_an_op_makes_is_checked(kind: Any, made: Any, message: str, device: torch.device) -> None:
    made.__name__, made.__doc__ = "own", "Make something."
    kind(a_range=RANGE)(made)
    with pytest.raises(UserError, match=re.escape(message)):
        Transform(load_recipe({"size": 8, "train": {"own": {}}}), device=device)(IMAGES, np.eye(2))


@pytest.mark.usefixtures("clean_registry")
def test_a_local_op_need_not_use_what_is_drawn(device: torch.device) -> None:
    @local(a_range=RANGE)
    def idle(images: Any, dali: Any, a: Any) -> Any:
        """Do nothing."""
        return images

    recipe = load_recipe({"size": 8, "mean": [0, 0, 0], "std": [1, 1, 1], "train": {"idle": {}}})
    assert Transform(recipe, device=device)(IMAGES).mean().item() == 1
