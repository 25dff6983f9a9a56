"""Render the images of a preview: single steps at the ends of their ranges, and whole recipes as fed to the model.

All images go through the pipeline that training uses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from rich.progress import Progress

from augment.data.dataset import ImageRef, Split
from augment.pipeline.build import render
from augment.pipeline.graph import Form, Placement
from augment.pipeline.loader import Loader
from augment.pipeline.reading import Order
from augment.recipe.captions import (
    LEVELS,
    applied_steps,
    chance_of,
    is_fixed,
    pin,
    pinned_values,
    ranges_of,
    settings_of,
)
from augment.recipe.kinds import Kind, Op
from augment.recipe.op import OPS
from augment.recipe.ops.crops import letterbox, resize
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import Aug, SplitName, Step, parse_steps
from augment.recipe.views import Views
from augment.support.errors import UserError
from augment.tools.preview.sheet import Pixels, SheetBlock, SheetRow, Tile

# Draws shown of a whole recipe, and of an op without ranges.
DRAWS = 4
OP_DRAWS = 3


# --- images as fed to the model ---


@dataclass(frozen=True)
class Shot:
    """An image as fed to the model.

    Attributes:
        epoch: the epoch in which it occurs.
        view: index of the view.
        photo: index of the file.
        image: (height, width, 3) RGB.
        done: what was done to it, as phrases.
    """

    epoch: int
    view: int
    photo: int
    image: Pixels
    done: tuple[str, ...]


def shoot(plan: Plan, files: Sequence[ImageRef], *, seed: int, epochs: int) -> list[Shot]:
    """Run files, an epoch of one batch, through a plan; return a shot for each epoch, view and file.

    What was done to each is described from the sampler's draws for these samples.
    """
    split = Split(tuple(files), tuple(range(len(files))))
    mixing = [step.key for stage in plan.batch_stages for step in stage.steps]
    # Mixing happens after normalization; targets then tell the shares.
    classes = [str(number) for number in split.targets]
    loader = Loader(plan, split, Order(len(files), seed), Placement(), Form(raw=not mixing), classes=classes)
    shots = []
    for epoch in range(epochs):
        (batch,) = loader
        for view, own in enumerate(plan.per_view):
            sampler = Sampler(own, seed, view=view)
            draws = sampler.draw(epoch, 0, len(batch))
            first = replace(sampler, view=0).draw(epoch, 0, len(batch))  # all views are mixed as the first one
            draws |= {key: first[key] for key in mixing}
            images = _pixels(batch.views[view], own)
            for sample, photo in enumerate(batch.indices.tolist()):
                done = applied_steps(own, draws, sample)
                if any(draws[key]["applied"][sample] for key in mixing):
                    done.append(f"share {float(batch.targets[sample, photo]):.2f}")
                shots.append(Shot(epoch, view, photo, images[sample], tuple(done)))
    loader.close()
    return shots


def _pixels(images: torch.Tensor, plan: Plan) -> Pixels:
    """Convert images as returned by the loader to (N, height, width, 3) uint8."""
    if images.dtype != torch.uint8:
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (plan.mean, plan.std))
        images = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().numpy()


# --- single steps ---


@dataclass(frozen=True)
class Studio:
    """Renders single steps on a photo.

    Attributes:
        aug: provides the image size and other settings; its steps are not used.
        files: the photos; those after the first are only used for mixing.
        seed: seed of the draws.
    """

    aug: Aug
    files: tuple[ImageRef, ...]
    seed: int

    def row(self, step: Step, lines: Sequence[str]) -> SheetRow:
        """Return the original, and the step at the low end, the middle and the high end of its ranges.

        A random step without ranges is shown in a few draws; any other step in a single image.
        """
        # Only crops see more of a photo than what has the output's aspect ratio.
        original = letterbox if step.op.kind == "crop" else resize
        settings = {"fill": 255} if step.op.kind == "crop" else {"side": "short"}
        first = Tile(self._render(_step(original, **settings)), ("original",))
        return SheetRow((first, *self._tiles(step)), step.title, tuple(lines))

    def _tiles(self, step: Step) -> Iterator[Tile]:
        op = step.op
        mixed = op.kind in ("policy", "batch")
        if not mixed and any(not is_fixed(step.params[name]) for name in ranges_of(step)):
            for level in LEVELS:
                yield Tile(self._render(pin(step, level)), _captioned(level, pinned_values(step, level)))
        elif mixed or op.random or op.uniforms:
            for shot in shoot(self._plan(pin(step), "train"), self.files, seed=self.seed, epochs=OP_DRAWS):
                if shot.photo == 0:
                    # The row shows the step's name; a policy may have done nothing.
                    done = shot.done or ("unchanged",) if op.kind == "policy" else shot.done[1:]
                    yield Tile(shot.image, _captioned(f"draw {shot.epoch + 1}", done))
        else:
            yield Tile(self._render(pin(step, "low")), tuple(pinned_values(step, "low")) or (step.title,))

    def _plan(self, step: Step, split: SplitName) -> Plan:
        steps = (step,) if step.op.kind == "crop" else (_step(resize, side="short"), step)
        return build_plan(replace(self.aug, train=steps, val=steps, views=Views()), split)

    def _render(self, step: Step) -> Pixels:
        image: Pixels = render(self._plan(step, "val"), self.files[:1], self.seed)[0]
        return image


def render_whole(aug: Aug, files: Sequence[ImageRef]) -> Pixels:
    """Return whole images on a white background: (N, height, width, 3)."""
    return render(build_plan(replace(aug, val=(_step(letterbox, fill=255),)), "val"), files, 0)


def _step(op: Callable[..., Any], **params: Any) -> Step:
    (step,) = parse_steps({op.__name__: params}, "preview")
    return step


def _captioned(what: str, phrases: Sequence[str]) -> tuple[str, ...]:
    """Prefix the first phrase with `what`."""
    return (f"{what}: {phrases[0]}", *phrases[1:]) if phrases else (what,)


# --- sheets ---


def recipe_blocks(
    aug: Aug, split: SplitName, files: Sequence[ImageRef], progress: Progress, *, seed: int
) -> list[SheetBlock]:
    """Show each step of a recipe that mixes no images alone on the first photo, then the whole recipe on all photos."""
    plan = build_plan(aug, split)
    studio = Studio(aug, tuple(files[:1]), seed)
    shown: list[tuple[Step, str]] = []  # with the view, unless an earlier one has the same step
    for own in plan.per_view:
        others = [step for step, _ in shown]
        view = f"view {own.view}" if own.view != plan.view else ""
        shown += [(step, view) for step in (own.crop, *own.tree) if not step.mixes and step not in others]
    rows = [
        studio.row(step, [", ".join(filter(None, [view, *chance_of(step), *settings_of(step)]))])
        for step, view in progress.track(shown, description="Drawing")
    ]
    how = "applied to every image, at the low end, the middle and the high end of its ranges"
    return [SheetBlock("Single steps", how, tuple(rows)), _whole(plan, aug, files, seed)]


def _whole(plan: Plan, aug: Aug, files: Sequence[ImageRef], seed: int) -> SheetBlock:
    """Show the model input: a row for each photo, a column for each draw and view."""
    views = _view_names(plan)
    # Validation is the same in every epoch.
    epochs = max(1, DRAWS // len(views)) if plan.split == "train" else 1
    tiles = [[Tile(original, ("original",))] for original in render_whole(aug, files)]
    for shot in shoot(plan, files, seed=seed, epochs=epochs):
        done = shot.done or ("crop only",)
        which = f"draw {shot.epoch + 1}, view {views[shot.view]}"
        tiles[shot.photo].append(Tile(shot.image, _captioned(which, done) if len(views) > 1 else done))
    window = " with a window drawn by DALI" if plan.crop.op.random else ""
    steps = ", then the steps below each image" if plan.tree else ""
    rows = tuple(SheetRow(tuple(row)) for row in tiles)
    return SheetBlock("Whole recipe", f"the model input: {plan.crop.title}{window}{steps}", rows)


def _view_names(plan: Plan) -> list[str]:
    """Return the names of a plan's views, with a number where several have one name, or numbers alone."""
    named = [own.view for own in plan.per_view]
    return [
        name if named.count(name) == 1 and name else f"{name} {named[: i + 1].count(name)}".strip()
        for i, name in enumerate(named)
    ]


def ops_blocks(
    aug: Aug, names: Sequence[str], files: Sequence[ImageRef], progress: Progress, *, seed: int
) -> list[SheetBlock]:
    """Show ops with their default parameters on the first photo, a block for each kind; mixing takes two photos."""
    studio = Studio(aug, tuple(files), seed)
    kinds: dict[str, list[SheetRow]] = {kind: [] for kind in get_args(Kind)}
    for name in progress.track(names, description="Drawing"):
        kinds[OPS[name].kind].append(_op_row(studio, OPS[name]))
    return [SheetBlock(kind.capitalize(), "", tuple(rows)) for kind, rows in kinds.items() if rows]


def _op_row(studio: Studio, op: Op) -> SheetRow:
    doc = op.doc.split("\n")[0].replace("`", "")
    # A policy chooses from the first geometry and color ops with drawn values.
    kinds = [[o.name for o in OPS.values() if o.draws and o.kind == kind][:2] for kind in ("geometry", "color")]
    example = {"steps": dict.fromkeys(name for names in kinds for name in names)}
    try:
        (step,) = parse_steps({op.name: example if op.nests else {}}, "preview")
    except UserError as error:
        return SheetRow((), op.name, (doc, f"not shown: {str(error).removeprefix('preview.')}"))
    return studio.row(step, [doc, ", ".join(settings_of(step))])
