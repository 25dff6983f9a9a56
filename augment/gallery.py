"""What a preview shows: ops at the ends of their ranges, and whole recipes as the model would be fed.

Everything goes through the pipeline that training uses. Captions of random pictures are what the sampler draws for
exactly these samples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from augment.captions import PLACES, Place, applied_steps, is_fixed, pin, pinned_values, ranges_of, settings_of, title_of
from augment.config import Aug, SplitName, Step, parse_steps
from augment.crops import letterbox, resize
from augment.dataset import Split
from augment.errors import UserError
from augment.loader import Batch, Loader
from augment.pipeline import build_pipeline
from augment.plan import Plan, build_plan
from augment.registry import OPS, Op
from augment.sampler import Sampler
from augment.sheet import Block, Row, Sheet, Tile

Pictures = NDArray[np.uint8]
Tick = Callable[[], None]

# Columns of whole recipes, and pictures of an op that has no range to show the ends of.
DRAWS = 4
OP_DRAWS = 3


@dataclass(frozen=True)
class Shot:
    """A picture as the model would be fed it.

    Attributes:
        epoch: in which it is drawn so.
        view: of the pictures made of one.
        photo: index of the file.
        picture: (size, size, 3) RGB.
        done: what was done to it, in words.
    """

    epoch: int
    view: int
    photo: int
    picture: Pictures
    done: tuple[str, ...]


# --- pictures ---


def shoot(plan: Plan, files: Sequence[Path], *, seed: int, epochs: int) -> list[Shot]:
    """Run files through a plan for some epochs, one batch each, and say what was done to each."""
    split = Split(tuple(files), tuple(range(len(files))))
    # Pictures that are mixed are mixed after normalization; the share of each comes out as the targets.
    raw = not plan.batch_stages
    loader = Loader(plan, split, batch_size=len(files), seed=seed, device=torch.device("cpu"), classes=len(files),
                    raw=raw)  # fmt: skip
    samplers = [Sampler(plan, seed, view=view) for view in range(plan.views.count)]
    shots = []
    for epoch in range(epochs):
        for batch in loader:
            shots += [shot for v, s in enumerate(samplers) for shot in _shots(batch, s, epoch=epoch, view=v)]
    loader.close()
    return shots


def _shots(batch: Batch, sampler: Sampler, *, epoch: int, view: int) -> Iterator[Shot]:
    plan = sampler.plan
    # Views are mixed alike, all as the first one.
    draws = sampler.draw(epoch, 0, len(batch)) | _mixing(replace(sampler, view=0), epoch, len(batch))
    pictures = _pixels(batch.views[view], plan)
    for place, photo in enumerate(batch.indices.tolist()):
        done = applied_steps(plan, draws, place)
        if plan.batch_stages and any(draws[s.key]["applied"][place] for t in plan.batch_stages for s in t.steps):
            done.append(f"{float(batch.targets[place, photo]):.0%} its own")
        yield Shot(epoch, view, photo, pictures[place], tuple(done))


def _mixing(sampler: Sampler, epoch: int, count: int) -> Mapping[str, Any]:
    keys = [step.key for stage in sampler.plan.batch_stages for step in stage.steps]
    drawn = sampler.draw(epoch, 0, count) if keys else {}
    return {key: drawn[key] for key in keys}


def _pixels(images: torch.Tensor, plan: Plan) -> Pictures:
    """Return (N, size, size, 3) uint8 of images as the loader hands them out."""
    if images.dtype != torch.uint8:
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (plan.mean, plan.std))
        images = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def render(aug: Aug, steps: Mapping[str, Any], files: Sequence[Path], *, seed: int) -> Pictures:
    """Return (N, size, size, 3) of files after steps that leave nothing to chance but what DALI draws."""
    plan = build_plan(replace(aug, val=parse_steps(steps, "preview")), "val")  # which keeps the order
    pipeline = build_pipeline(plan, files, batch_size=len(files), seed=seed, raw=True)
    images, _ = pipeline.run()
    return np.array(images.as_tensor())


def square(aug: Aug, files: Sequence[Path]) -> Pictures:
    """Return the middle of files, which steps are shown on."""
    return render(aug, {resize.__name__: {"side": "short"}}, files, seed=0)


def whole(aug: Aug, files: Sequence[Path]) -> Pictures:
    """Return the whole of files on white, which crops are shown beside."""
    return render(aug, {letterbox.__name__: {"fill": 255}}, files, seed=0)


# --- rows: a step on each photo ---


def _one(aug: Aug, step: Step, split: SplitName, seed: int) -> Plan:
    """Return the plan of one step that applies to every picture."""
    steps = (step,) if step.op.kind == "crop" else (*parse_steps({resize.__name__: {"side": "short"}}, "preview"), step)
    return build_plan(replace(aug, train=steps, val=steps, views=type(aug.views)()), split)


def tiles_of(aug: Aug, step: Step, files: Sequence[Path], count: int, seed: int) -> list[list[Tile]]:
    """Return what a step does to the first `count` files, a list each, the untouched photo first.

    A step with ranges is shown at their low ends, middles and high ends; what is a matter of chance beside its ranges,
    or has none, in a few draws; all else in one picture.
    """
    originals = (whole if step.op.kind == "crop" else square)(aug, files[:count])
    tiles = [[Tile(original, ("original",))] for original in originals]
    for caption, pictures in _variants(aug, step, files, count, seed):
        for own, picture, phrases in zip(tiles, pictures, caption, strict=True):
            own.append(Tile(picture, phrases))
    return tiles


def _variants(
    aug: Aug, step: Step, files: Sequence[Path], count: int, seed: int
) -> Iterator[tuple[list[tuple[str, ...]], Sequence[Pictures]]]:
    """Yield captions and pictures of each variant of a step, one a file."""
    by_chance = step.op.kind in ("policy", "batch")
    if not by_chance and any(not is_fixed(step.params[name]) for name in ranges_of(step)):
        for place in PLACES:
            yield [_at(step, place)] * count, _pinned(aug, step, place, files[:count], seed)
    elif by_chance or step.op.random or step.op.uniforms:
        shots = shoot(_one(aug, pin(step), "train", seed), files, seed=seed, epochs=OP_DRAWS)
        for epoch in range(OP_DRAWS):
            own = sorted((s for s in shots if s.epoch == epoch and s.photo < count), key=lambda shot: shot.photo)
            texts = [(f"draw {epoch + 1}", *_told(step, shot)) for shot in own]
            yield texts, [shot.picture for shot in own]
    else:
        phrases = tuple(pinned_values(step, "low")) or (title_of(step).replace("_", " "),)
        yield [phrases] * count, _pinned(aug, step, "low", files[:count], seed)


def _at(step: Step, place: Place) -> tuple[str, ...]:
    first, *rest = pinned_values(step, place)
    return f"{place}: {first}", *rest


def _told(step: Step, shot: Shot) -> tuple[str, ...]:
    """Say what was drawn of a step whose name stands beside it."""
    if step.op.kind == "policy":
        return shot.done or ("unchanged",)
    return shot.done[1:]


def _pinned(aug: Aug, step: Step, place: Place, files: Sequence[Path], seed: int) -> Pictures:
    plan = _one(aug, pin(step, place), "val", seed)
    images, _ = build_pipeline(plan, files, batch_size=len(files), seed=seed, raw=True).run()
    return np.array(images.as_tensor())


def _rows(aug: Aug, step: Step, files: Sequence[Path], count: int, seed: int, phrases: Sequence[str]) -> list[Row]:
    first, *others = tiles_of(aug, step, files, count, seed)
    title = title_of(step)
    return [Row(tuple(first), title, tuple(phrases)), *(Row(tuple(tiles), " ") for tiles in others)]


# --- sheets ---


def recipe_sheet(
    aug: Aug, split: SplitName, files: Sequence[Path], *, seed: int, title: str, text: str, tick: Tick
) -> Sheet:
    """Show each step of a recipe by itself on the first photo, then the whole recipe on all photos."""
    plan = build_plan(aug, split)
    rows = []
    for step in shown_steps(plan):
        rows += _rows(aug, step, files[:1], 1, seed, settings_of(step))
        tick()
    chapters = [Block("Each step by itself", "applied to every picture, at the ends and the middle of its ranges",
                      tuple(rows))]  # fmt: skip
    chapters.append(_whole_recipe(aug, plan, files, seed))
    tick()
    return Sheet(title, text, tuple(chapters), smallest=192)


def shown_steps(plan: Plan) -> list[Step]:
    """Return the steps that can be shown by themselves: the crop, and all that mix no pictures."""
    return [plan.crop, *(s for s in plan.tree if all(leaf.op.kind != "batch" for leaf in s.leaves()))]


def _whole_recipe(aug: Aug, plan: Plan, files: Sequence[Path], seed: int) -> Block:
    """Show what the model is fed: a row a photo, a column a draw (and a view of it)."""
    views = plan.views.count
    # Validation draws the same in every epoch.
    epochs = max(1, DRAWS // views) if plan.split == "train" else 1
    shots = {(s.photo, s.epoch, s.view): s for s in shoot(plan, files, seed=seed, epochs=epochs)}
    rows = []
    for photo, original in enumerate(whole(aug, files)):
        tiles = [Tile(original, ("original",))]
        for epoch in range(epochs):
            for view in range(views):
                shot = shots[photo, epoch, view]
                which = (f"draw {epoch + 1}, view {view + 1}:",) if views > 1 else ()
                tiles.append(Tile(shot.picture, (*which, *(shot.done or ("crop only",)))))
        rows.append(Row(tuple(tiles)))
    chance = "its window drawn by DALI, " if plan.crop.op.random else ""
    text = f"as the model is fed: cropped by {title_of(plan.crop)}, {chance}then the steps named below each picture"
    return Block("The whole recipe", text, tuple(rows))


def ops_sheet(
    aug: Aug, names: Sequence[str], files: Sequence[Path], *, count: int, seed: int, title: str, text: str, tick: Tick
) -> Sheet:
    """Show ops with their default parameters on the first `count` photos, in a block for each kind."""
    rows: dict[str, list[Row]] = {}
    for op in sorted((OPS[name] for name in dict.fromkeys(names)), key=lambda op: _KINDS.index(op.kind)):
        rows.setdefault(op.kind, []).extend(_op_rows(aug, op, files, count, seed))
        tick()
    most = max(map(len, rows.values()))
    panels = 1 if len(names) <= 4 or count > 1 else 2 if len(names) <= 12 else 3
    blocks = [Block(kind.capitalize(), "", tuple(own), min(panels, most)) for kind, own in rows.items()]
    return Sheet(title, text, tuple(blocks), smallest=192 if panels == 1 else 128)


_KINDS = ("crop", "geometry", "color", "local", "policy", "batch")


def _op_rows(aug: Aug, op: Op, files: Sequence[Path], count: int, seed: int) -> list[Row]:
    doc = (op.doc.split("\n")[0],)
    try:
        (step,) = parse_steps({op.name: {"steps": _example()} if op.nests else {}}, "preview")
    except UserError as error:
        return [Row((), op.name, (*doc, f"not shown: {str(error).removeprefix('preview.')}"))]
    return _rows(aug, step, files, count, seed, (*doc, *(settings_of(step)[-1:] if op.nests else ())))


def _example() -> dict[str, None]:
    """Return steps for a policy to choose from: the first ops of two kinds that draw something."""
    drawing = [op for op in OPS.values() if op.draws]
    kinds = [[op.name for op in drawing if op.kind == kind][:2] for kind in ("geometry", "color")]
    return dict.fromkeys([name for names in kinds for name in names])
