"""What a preview shows: ops at the ends of their ranges, and whole recipes as the model would be fed.

Everything goes through the pipeline that training uses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from augment.captions import (
    PLACES,
    chance_of,
    is_fixed,
    pin,
    pinned_values,
    ranges_of,
    settings_of,
)
from augment.config import Aug, SplitName, Step, Views, parse_steps
from augment.dataset import Picture
from augment.errors import UserError
from augment.ops.crops import letterbox, resize
from augment.pipeline import build_pipeline
from augment.plan import Plan, build_plan
from augment.preview.sheet import Block, Row, Sheet, Tile
from augment.preview.shots import Pictures, Shot, shoot
from augment.registry import OPS, Kind, Op

Tick = Callable[[], None]

# Columns of whole recipes, and pictures of an op that has no range to show the ends of.
DRAWS = 4
OP_DRAWS = 3


# --- a step on each photo ---


@dataclass(frozen=True)
class Studio:
    """Shows steps by themselves on a few photos.

    Attributes:
        aug: the size of pictures and the like; its steps do not count.
        files: the photos; those behind the first `count` only take part in being mixed.
        count: how many are shown.
        seed: of the draws.
    """

    aug: Aug
    files: tuple[Picture, ...]
    count: int
    seed: int

    def rows(self, step: Step, lines: Sequence[str]) -> list[Row]:
        """Return a row for each photo, the untouched one first; the first row has the step's name.

        A step with ranges is shown at their low ends, middles and high ends; what is all chance, in a few draws; all
        else in one picture.
        """
        # Nothing but a crop sees more of the photo than a square.
        originals = self._whole if step.op.kind == "crop" else self._square
        tiles = [[Tile(original, ("original",))] for original in originals]
        for variant in self._variants(step):
            for own, tile in zip(tiles, variant, strict=True):
                own.append(tile)
        first, *others = map(tuple, tiles)
        return [Row(first, step.title, tuple(lines)), *map(Row, others)]

    def _variants(self, step: Step) -> Iterator[list[Tile]]:
        """Yield for each variant of a step a tile a photo."""
        op = step.op
        mixed = op.kind in ("policy", "batch")
        if not mixed and any(not is_fixed(step.params[name]) for name in ranges_of(step)):
            for place in PLACES:
                caption = _captioned(place, pinned_values(step, place))
                yield [Tile(picture, caption) for picture in self._render(pin(step, place))]
        elif mixed or op.random or op.uniforms:
            shots = shoot(self._plan(pin(step), "train"), self.files, seed=self.seed, epochs=OP_DRAWS)
            for epoch in range(OP_DRAWS):
                own = {shot.photo: shot for shot in shots if shot.epoch == epoch}
                told = [_captioned(f"draw {epoch + 1}", _told(step, own[photo])) for photo in range(self.count)]
                yield [Tile(own[photo].picture, caption) for photo, caption in enumerate(told)]
        else:
            caption = tuple(pinned_values(step, "low")) or (step.title,)
            yield [Tile(picture, caption) for picture in self._render(pin(step, "low"))]

    @cached_property
    def _square(self) -> Pictures:
        return self._render(_step(resize, side="short"))

    @cached_property
    def _whole(self) -> Pictures:
        return whole(self.aug, self.files[: self.count])

    def _plan(self, step: Step, split: SplitName) -> Plan:
        steps = (step,) if step.op.kind == "crop" else (_step(resize, side="short"), step)
        return build_plan(replace(self.aug, train=steps, val=steps, views=Views()), split)

    def _render(self, step: Step) -> Pictures:
        return _render(self._plan(step, "val"), self.files[: self.count], self.seed)


def _render(plan: Plan, files: Sequence[Picture], seed: int) -> Pictures:
    """Return files after a plan of the val split, which keeps their order: (N, size, size, 3)."""
    images, _ = build_pipeline(plan, files, batch_size=len(files), seed=seed, raw=True).run()
    return np.array(images.as_tensor())


def whole(aug: Aug, files: Sequence[Picture]) -> Pictures:
    """Return files uncut, on white: (N, size, size, 3)."""
    return _render(build_plan(replace(aug, val=(_step(letterbox, fill=255),)), "val"), files, 0)


def _step(op: Callable[..., Any], **params: Any) -> Step:
    (step,) = parse_steps({op.__name__: params}, "preview")
    return step


def _captioned(what: str, phrases: Sequence[str]) -> tuple[str, ...]:
    """Put words before the first phrase."""
    return (f"{what}: {phrases[0]}", *phrases[1:]) if phrases else (what,)


def _told(step: Step, shot: Shot) -> tuple[str, ...]:
    """Say what was drawn of a step whose name stands beside it."""
    if step.op.kind == "policy":
        return shot.done or ("unchanged",)
    return shot.done[1:]


# --- sheets ---


def recipe_sheet(
    aug: Aug, split: SplitName, files: Sequence[Picture], *, seed: int, title: str, text: str, tick: Tick
) -> Sheet:
    """Show each step of a recipe by itself on the first photo, then the whole recipe on all photos.

    Args:
        aug: the recipe.
        split: whose steps.
        files: the photos.
        seed: of the draws.
        title: of the sheet.
        text: below the title.
        tick: called after each step and after the whole recipe.
    """
    plan = build_plan(aug, split)
    studio = Studio(aug, tuple(files[:1]), 1, seed)
    rows: list[Row] = []
    for step in shown_steps(plan):
        rows += studio.rows(step, [*chance_of(step), *settings_of(step)])
        tick()
    how = "applied to every picture, at the ends and in the middle of its ranges"
    blocks = (Block("Each step by itself", how, tuple(rows)), _whole_recipe(plan, aug, files, seed))
    tick()
    return Sheet(title, text, blocks, smallest=192)


def shown_steps(plan: Plan) -> list[Step]:
    """Return the steps that can be shown by themselves: the crop, and all that mix no pictures."""
    return [plan.crop, *(s for s in plan.tree if all(leaf.op.kind != "batch" for leaf in s.leaves()))]


def _whole_recipe(plan: Plan, aug: Aug, files: Sequence[Picture], seed: int) -> Block:
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
                done = shot.done or ("crop only",)
                which = f"draw {epoch + 1}, view {view + 1}"
                tiles.append(Tile(shot.picture, _captioned(which, done) if views > 1 else done))
        rows.append(Row(tuple(tiles)))
    chance = ", its window drawn by DALI" if plan.crop.op.random else ""
    steps = ", then the steps named below each picture" if plan.tree else ""
    return Block("The whole recipe", f"as the model is fed: {plan.crop.title}{chance}{steps}", tuple(rows),
                 names="nowhere")  # fmt: skip


def ops_sheet(
    aug: Aug,
    names: Sequence[str],
    files: Sequence[Picture],
    *,
    count: int,
    seed: int,
    title: str,
    text: str,
    tick: Tick,
) -> Sheet:
    """Show ops with their default parameters on the first `count` photos, in a block for each kind.

    Args:
        aug: the size of pictures and the like.
        names: of registered ops, each once.
        files: the photos, at least two where pictures are to be mixed.
        count: how many of them are shown.
        seed: of the draws.
        title: of the sheet.
        text: below the title.
        tick: called after each op.
    """
    studio = Studio(aug, tuple(files), count, seed)
    kinds: dict[str, list[Row]] = {kind: [] for kind in get_args(Kind)}
    for name in names:
        kinds[OPS[name].kind] += _op_rows(studio, OPS[name])
        tick()
    panels = 1 if len(names) <= 4 or count > 1 else 2 if len(names) <= 12 else 4
    panels = min(panels, max(map(len, kinds.values())))
    blocks = [Block(kind.capitalize(), "", tuple(rows), panels, "above") for kind, rows in kinds.items() if rows]
    return Sheet(title, text, tuple(blocks), smallest=192 if panels == 1 else 128)


def _op_rows(studio: Studio, op: Op) -> list[Row]:
    doc = op.doc.split("\n")[0].replace("`", "")
    try:
        (step,) = parse_steps({op.name: {"steps": _example()} if op.nests else {}}, "preview")
    except UserError as error:
        return [Row((), op.name, (doc, f"not shown: {str(error).removeprefix('preview.')}"))]
    return studio.rows(step, [doc, ", ".join(settings_of(step))])


def _example() -> dict[str, None]:
    """Return steps for a policy to choose from: the first ops of two kinds that draw something."""
    drawing = [op for op in OPS.values() if op.draws]
    kinds = [[op.name for op in drawing if op.kind == kind][:2] for kind in ("geometry", "color")]
    return dict.fromkeys([name for names in kinds for name in names])
