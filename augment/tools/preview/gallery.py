"""Render the images of a preview: single steps at the ends of their ranges, and whole recipes as fed to the model.

All images go through the pipeline that training uses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

from rich.progress import Progress

from augment.data.dataset import ImageRef
from augment.pipeline.build import render
from augment.recipe.captions import LEVELS, chance_of, is_fixed, pin, pinned_values, ranges_of, settings_of
from augment.recipe.kinds import Kind, Op
from augment.recipe.op import OPS
from augment.recipe.ops.crops import letterbox, resize
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import Aug, SplitName, Step, parse_steps
from augment.recipe.views import Views
from augment.support.errors import UserError
from augment.tools.preview.sheet import Block, Sheet, SheetRow, Tile
from augment.tools.preview.shots import Images, shoot

# Draws shown of a whole recipe, and of an op without ranges.
DRAWS = 4
OP_DRAWS = 3


# --- single steps ---


@dataclass(frozen=True)
class Studio:
    """Renders single steps on a few photos.

    Attributes:
        aug: provides the image size and other settings; its steps are not used.
        files: the photos; those after the first `count` are only used for mixing.
        count: number of photos shown.
        seed: seed of the draws.
    """

    aug: Aug
    files: tuple[ImageRef, ...]
    count: int
    seed: int

    def rows(self, step: Step, lines: Sequence[str]) -> list[SheetRow]:
        """Return a row for each photo, starting with the original; the first row has the step's title and `lines`.

        A step with ranges is shown at the low end, the middle and the high end of each; another random step in a few
        draws; any other step in a single image.
        """
        # Only crops see more of a photo than a square.
        originals = self._whole if step.op.kind == "crop" else self._square
        tiles = [[Tile(original, ("original",))] for original in originals]
        for variant in self._variants(step):
            for own, tile in zip(tiles, variant, strict=True):
                own.append(tile)
        first, *others = map(tuple, tiles)
        return [SheetRow(first, step.title, tuple(lines)), *map(SheetRow, others)]

    def _variants(self, step: Step) -> Iterator[list[Tile]]:
        """Yield one tile per photo for each variant of a step."""
        op = step.op
        mixed = op.kind in ("policy", "batch")
        if not mixed and any(not is_fixed(step.params[name]) for name in ranges_of(step)):
            for level in LEVELS:
                caption = _captioned(level, pinned_values(step, level))
                yield [Tile(image, caption) for image in self._render(pin(step, level))]
        elif mixed or op.random or op.uniforms:
            shots = shoot(self._plan(pin(step), "train"), self.files, seed=self.seed, epochs=OP_DRAWS)
            for epoch in range(OP_DRAWS):
                own = {shot.photo: shot for shot in shots if shot.epoch == epoch}
                # The row shows the step's name; a policy may have done nothing.
                drawn = {p: s.done or ("unchanged",) if op.kind == "policy" else s.done[1:] for p, s in own.items()}
                yield [Tile(own[p].image, _captioned(f"draw {epoch + 1}", drawn[p])) for p in range(self.count)]
        else:
            caption = tuple(pinned_values(step, "low")) or (step.title,)
            yield [Tile(image, caption) for image in self._render(pin(step, "low"))]

    @cached_property
    def _square(self) -> Images:
        return self._render(_step(resize, side="short"))

    @cached_property
    def _whole(self) -> Images:
        return render_whole(self.aug, self.files[: self.count])

    def _plan(self, step: Step, split: SplitName) -> Plan:
        steps = (step,) if step.op.kind == "crop" else (_step(resize, side="short"), step)
        return build_plan(replace(self.aug, train=steps, val=steps, views=Views()), split)

    def _render(self, step: Step) -> Images:
        return render(self._plan(step, "val"), self.files[: self.count], self.seed)


def render_whole(aug: Aug, files: Sequence[ImageRef]) -> Images:
    """Return whole images on a white background: (N, size, size, 3)."""
    return render(build_plan(replace(aug, val=(_step(letterbox, fill=255),)), "val"), files, 0)


def _step(op: Callable[..., Any], **params: Any) -> Step:
    (step,) = parse_steps({op.__name__: params}, "preview")
    return step


def _captioned(what: str, phrases: Sequence[str]) -> tuple[str, ...]:
    """Prefix the first phrase with `what`."""
    return (f"{what}: {phrases[0]}", *phrases[1:]) if phrases else (what,)


# --- sheets ---


def recipe_sheet(aug: Aug, split: SplitName, files: Sequence[ImageRef], progress: Progress, *, seed: int) -> Sheet:
    """Show each step of a recipe that mixes no images alone on the first photo, then the whole recipe on all photos.

    Args:
        aug: the recipe.
        split: the split whose steps are shown.
        files: the photos.
        progress: shows the progress.
        seed: seed of the draws.
    """
    plan = build_plan(aug, split)
    studio = Studio(aug, tuple(files[:1]), 1, seed)
    rows: list[SheetRow] = []
    shown: list[tuple[str, Step]] = []  # with the view, unless an earlier one has the same step
    for own in plan.per_view:
        others = [step for _, step in shown]
        shown += [(own.view, step) for step in (own.crop, *own.tree) if not step.mixes and step not in others]
    for view, step in progress.track(shown, description="Drawing"):
        of_view = [f"view {view}"] if view != plan.view else []
        rows += studio.rows(step, [*of_view, *chance_of(step), *settings_of(step)])
    how = "applied to every image, at the low end, the middle and the high end of its ranges"
    blocks = (Block("Single steps", how, tuple(rows)), _whole_recipe(plan, aug, files, seed))
    return Sheet(blocks, smallest=192)


def _whole_recipe(plan: Plan, aug: Aug, files: Sequence[ImageRef], seed: int) -> Block:
    """Show the model input: a row for each photo, a column for each draw and view."""
    views = _view_names(plan)
    # Validation is the same in every epoch.
    epochs = max(1, DRAWS // len(views)) if plan.split == "train" else 1
    shots = {(s.photo, s.epoch, s.view): s for s in shoot(plan, files, seed=seed, epochs=epochs)}
    rows = []
    for photo, original in enumerate(render_whole(aug, files)):
        tiles = [Tile(original, ("original",))]
        for epoch in range(epochs):
            for view, name in enumerate(views):
                shot = shots[photo, epoch, view]
                done = shot.done or ("crop only",)
                which = f"draw {epoch + 1}, view {name}"
                tiles.append(Tile(shot.image, _captioned(which, done) if len(views) > 1 else done))
        rows.append(SheetRow(tuple(tiles)))
    window = " with a window drawn by DALI" if plan.crop.op.random else ""
    steps = ", then the steps below each image" if plan.tree else ""
    return Block("Whole recipe", f"the model input: {plan.crop.title}{window}{steps}", tuple(rows),
                 names="nowhere")  # fmt: skip


def _view_names(plan: Plan) -> list[str]:
    """Return the names of a plan's views, with a number where several have one name, or numbers alone."""
    named = [own.view for own in plan.per_view]
    return [
        name if named.count(name) == 1 and name else f"{name} {named[: i + 1].count(name)}".strip()
        for i, name in enumerate(named)
    ]


def ops_sheet(
    aug: Aug, names: Sequence[str], files: Sequence[ImageRef], progress: Progress, *, count: int, seed: int
) -> Sheet:
    """Show ops with their default parameters on the first `count` photos, in one block for each kind.

    Args:
        aug: provides the image size and other settings.
        names: names of registered ops, without duplicates.
        files: the photos, at least two if images are to be mixed.
        progress: shows the progress.
        count: number of photos shown.
        seed: seed of the draws.
    """
    studio = Studio(aug, tuple(files), count, seed)
    kinds: dict[str, list[SheetRow]] = {kind: [] for kind in get_args(Kind)}
    for name in progress.track(names, description="Drawing"):
        kinds[OPS[name].kind] += _op_rows(studio, OPS[name])
    panels = 1 if len(names) <= 4 or count > 1 else 2 if len(names) <= 12 else 4
    panels = min(panels, max(map(len, kinds.values())))
    blocks = [Block(kind.capitalize(), "", tuple(rows), panels, "above") for kind, rows in kinds.items() if rows]
    return Sheet(tuple(blocks), smallest=192 if panels == 1 else 128)


def _op_rows(studio: Studio, op: Op) -> list[SheetRow]:
    doc = op.doc.split("\n")[0].replace("`", "")
    # A policy chooses from the first geometry and color ops with drawn values.
    kinds = [[o.name for o in OPS.values() if o.draws and o.kind == kind][:2] for kind in ("geometry", "color")]
    example = {"steps": dict.fromkeys(name for names in kinds for name in names)}
    try:
        (step,) = parse_steps({op.name: example if op.nests else {}}, "preview")
    except UserError as error:
        return [SheetRow((), op.name, (doc, f"not shown: {str(error).removeprefix('preview.')}"))]
    return studio.rows(step, [doc, ", ".join(settings_of(step))])
