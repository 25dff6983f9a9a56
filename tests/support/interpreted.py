"""Run programs in Triton's interpreter, which must be switched on before Triton is imported: a process of its own.

Prints JSON: how far the kernel is from DALI's operators, for each case, and whether a loader resumes; with the argument
"large", the levels of a large image after a change of contrast.
"""

import json
import os
import sys
from dataclasses import replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from decoded import MemoryImage
from photos import draw_photo
from pipelines import SEED, plan_of, run

from augment import load_recipe
from augment.data.dataset import Split
from augment.pipeline import build, transform
from augment.pipeline import kernel as kernels
from augment.pipeline.loader import Loader
from augment.pipeline.program import Program
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler

SIZE = 25  # odd, so that the last block of pixels is not full
CPU = torch.device("cpu")
FLAT = MemoryImage("flat", np.full((SIZE, SIZE, 3), 77, np.uint8))
PHOTOS = (*(MemoryImage(str(seed), draw_photo(SIZE, SIZE, seed)) for seed in range(9)), FLAT)
OPERATORS = build.program_of


def kernel(plan: Any, *_: Any) -> Program:
    program = Program.of(plan)
    assert program is not None
    return program


def compare(steps: dict[str, Any]) -> dict[str, Any]:
    """Return the largest and the mean difference, and whether skipped samples are the same to the bit."""
    plan = plan_of(steps, size=SIZE)
    build.program_of = OPERATORS
    ours, _ = run(plan, PHOTOS, CPU)
    build.program_of = kernel
    found, _ = run(plan, PHOTOS, CPU)
    off = np.abs(found.astype(int) - ours)
    draws = Sampler(plan, SEED).draw(0, 0, len(PHOTOS))
    skipped = ~np.logical_or.reduce([stage.applied(draws) for stage in plan.image_stages])
    return {"most": int(off.max()), "mean": float(off.mean()), "skipped": int(off[skipped].sum())}


def resume() -> bool:
    """Return whether a loader of two views resumes within an epoch to the same batches, normalized."""
    views, steps = {"count": 2}, {"flip": {"p": 0.5}, "rand_augment": {}}
    plan = plan_of(steps, "train", SIZE, views=views)

    def loader() -> Loader:
        return Loader(plan, Split(PHOTOS[:4], (0,) * 4), batch_size=2, seed=1, device=CPU)

    one, other = loader(), loader()
    batches = iter(one)
    next(batches)
    other.load_state_dict(one.state_dict())
    rest, again = list(batches), list(other)
    assert all(view.is_contiguous(memory_format=torch.channels_last) for batch in rest for view in batch.views)
    assert rest[0].images.abs().max() < 3  # normalized
    assert not torch.equal(rest[0].views[0], rest[0].views[1])
    pairs = [pair for x, y in zip(rest, again, strict=True) for pair in zip(x.views, y.views, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


def transformed() -> bool:
    """Return whether the first call of a transform makes what a loader's first batch is."""
    recipe = load_recipe({"size": SIZE, "train": {"resize": {}, "trivial_augment": {}}})
    plan = build_plan(recipe.aug, "train")
    batch = next(iter(Loader(plan, Split(PHOTOS, (0,) * len(PHOTOS)), batch_size=4, seed=1, device=CPU)))
    transform.program_of = kernel
    images = transform.Transform(recipe, device="cpu", seed=1)([PHOTOS[i].pixels for i in batch.indices.tolist()])
    return torch.equal(images, batch.images)


def large() -> list[int]:
    """Return the levels of an image of one bright level, whose sum is beyond an int32, after its contrast is halved."""
    kernels._BLOCK = 2**20  # blocks as large as they can be take the least time here
    plan = plan_of({"contrast": {"pivot": "mean", "factor_range": {"values": [0.5]}}, "posterize": {}, "solarize": {}})
    program = Program(replace(plan, stages=plan.stages[:1]))
    image = torch.full((1, 2944, 2944, 3), 250, dtype=torch.uint8)
    programs = torch.from_numpy(program.values(Sampler(program.plan, SEED).draw(0, 0, 1)))
    return program.run(image, programs, half=False, raw=True).unique().tolist()


def main() -> None:
    tables = {"posterize": {"p": 0.3}, "equalize": {"p": 0.5}, "solarize": {"p": 0.5}, "autocontrast": {"p": 0.5}}
    colors = {"contrast": {"p": 0.5, "pivot": "mean"}, "sharpen": {"p": 0.5}, **tables}
    warps = {"rotate": {"p": 0.7, "angle_range": [-40, 40]}, "perspective": {"p": 0.3}}
    cases = {"auto_augment": {"auto_augment": {}}, "tables and the mean": colors}
    for border in ("constant", "reflect_101", "replicate"):
        moved = {name: {**step, "border": border} for name, step in warps.items()}
        cases[border] = {**moved, "brightness": {}, "posterize": {"p": 0.5}, "solarize": {"p": 0.2}}
    found = {name: compare(steps) for name, steps in cases.items()}
    json.dump({**found, "resumed": resume(), "transformed": transformed()}, sys.stdout)


if __name__ == "__main__":
    json.dump(large(), sys.stdout) if "large" in sys.argv else main()
