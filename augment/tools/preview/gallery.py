"""Render the images of a preview: single steps at the ends of their ranges, and the model inputs of whole recipes.

All images go through the training pipeline.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from augment.data.dataset import NO_VAL, ImageRef, Split
from augment.data.display import channel_names, displayable, stretch
from augment.data.images import portable_name, shown_limits
from augment.data.targets.spatial import SpatialKind
from augment.drawing.contact_sheet import SMALLEST, Pixels, SheetBlock, SheetRow, Tile, in_rows
from augment.pipeline.batch import Batch, as_levels
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import Order
from augment.pipeline.loader import Loader
from augment.pipeline.notebook_display import with_target
from augment.recipe.captions import (
    LEVELS,
    drawn_step,
    is_fixed,
    pin,
    pinned_values,
    ranges_of,
    step_settings,
)
from augment.recipe.op import OPS
from augment.recipe.op_kinds import Op, OpKind
from augment.recipe.ops.crops import letterbox, resize
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.step import Step, parse_steps
from augment.recipe.steps import Aug, SplitName
from augment.recipe.views import Views
from augment.support.errors import UserError

DRAWS = 4  # random versions of a whole recipe


@dataclass(frozen=True)
class Photos:
    """The photos of a preview, with their masks, boxes or keypoints.

    A photo without such a target has its index as its class. The target of a mixed image then contains the share of
    each photo.
    """

    split: Split
    names: tuple[str, ...]  # names of classes or keypoints
    kind: SpatialKind | None  # kind of the targets to draw, if any

    @classmethod
    def of(cls, files: Sequence[ImageRef], split: Split = NO_VAL, names: tuple[str, ...] = ()) -> "Photos":
        """Return photos of files. If the split has masks, boxes or keypoints, they are drawn."""
        kind = split.kind
        if not isinstance(kind, SpatialKind):
            numbers = tuple(range(len(files)))
            return cls(Split(tuple(files), numbers), tuple(map(str, numbers)), None)
        target = dict(zip(split.files, split.targets, strict=True))
        return cls(Split(tuple(files), tuple(target[file] for file in files), kind), names, kind)

    def first(self, count: int) -> "Photos":
        """Return the first `count` photos."""
        split = replace(self.split, files=self.split.files[:count], targets=self.split.targets[:count])
        return replace(self, split=split)


# --- model inputs ---


@dataclass(frozen=True)
class ModelInput:
    """An augmented photo, as the model receives it."""

    epoch: int
    view: int  # index of the view
    photo: int  # index of the file
    levels: NDArray[Any]  # (height, width, channels), see `augment.params.pixel_format`
    image: Pixels  # (height, width, 3) RGB, with the targets drawn on it
    done: tuple[str, ...]  # phrases about the applied steps, with the values that the sampler drew


# Images are stretched to the limits of their originals. Otherwise brightness and contrast ops would have no effect.
_limits = cache(shown_limits)


def model_inputs(plan: Plan, photos: Photos, *, seed: int, epochs: int = 1) -> list[ModelInput]:
    """Run photos through a plan, with one batch per epoch. Return the inputs of each epoch, view and photo."""
    # Images are mixed after normalization. The targets then contain the share of each image.
    output = OutputFormat(raw=plan.pixels.is_bytes and not plan.batch_stages)
    order = Order(len(photos.split), seed)
    loader = Loader(plan, photos.split, order, Placement(), output, classes=photos.names)
    inputs: list[ModelInput] = []
    for epoch in range(epochs):
        (batch,) = loader
        for view, own in enumerate(plan.per_view):
            inputs += _inputs_of_view(own, photos, batch, epoch=epoch, view=view, seed=seed)
    loader.close()
    return inputs


def _inputs_of_view(
    plan: Plan, photos: Photos, batch: Batch, *, epoch: int, view: int, seed: int
) -> Iterator[ModelInput]:
    """Yield the inputs in one view of a batch. `plan` is the plan of this view."""
    kind = photos.kind
    mixing = [step.key for stage in plan.batch_stages for step in stage.steps]
    sampler = Sampler(plan, seed, view=view)
    draws = sampler.draw(epoch, 0, len(batch))
    first = replace(sampler, view=0).draw(epoch, 0, len(batch))  # all views are mixed like the first view
    draws |= {key: first[key] for key in mixing}
    levels = as_levels(batch.views[view], plan)
    for sample, photo in enumerate(batch.indices.tolist()):
        applied = [step for step in plan.steps if draws[step.key]["applied"][sample]]
        done = [drawn_step(step, draws[step.key], sample) for step in applied]
        if kind is None and any(draws[key]["applied"][sample] for key in mixing):
            done.append(f"share {float(batch.targets[sample, photo]):.2f}")
        image = displayable(levels[sample], plan.pixels, _limits(photos.split.files[photo]))
        if kind is not None:
            image = with_target(image, kind, batch.view_targets[view][sample], photos.names)
        yield ModelInput(epoch, view, photo, levels[sample], image, tuple(done))


# --- single steps ---


@dataclass(frozen=True)
class StepRenderer:
    """Renders single steps on a photo."""

    aug: Aug  # a recipe whose steps are not used
    photos: Photos  # only ops that mix images use the photos after the first
    seed: int

    def row(self, step: Step, lines: Sequence[str]) -> SheetRow:
        """Return a row with the original, and with the step at the low end, the middle and the high end of its ranges.

        A random step without ranges is shown a few times, and any other step once.
        """
        # For a crop, show the whole photo. Other ops get photos that are already cropped to the output's aspect ratio.
        original = letterbox if step.op.kind == "crop" else resize
        settings = {"fill": 255} if step.op.kind == "crop" else {"side": "short"}
        first = self._tile(_step(original, **settings), ("original",))
        return SheetRow((first, *self._tiles(step)), step.title, tuple(lines))

    def _tiles(self, step: Step) -> Iterator[Tile]:
        op = step.op
        mixed = op.kind in ("policy", "batch")
        if not mixed and any(not is_fixed(step.params[name]) for name in ranges_of(step)):
            for level in LEVELS:
                yield self._tile(pin(step, level), _captioned(level, pinned_values(step, level)))
        elif mixed or op.random or op.uniforms:
            for drawn in model_inputs(self._plan(pin(step), "train"), self.photos, seed=self.seed, epochs=3):
                if drawn.photo == 0:
                    # The row's title is the step's name. A policy may leave an image unchanged.
                    done = drawn.done or ("unchanged",) if op.kind == "policy" else drawn.done[1:]
                    yield Tile(drawn.image, _captioned(f"draw {drawn.epoch + 1}", done))
        else:
            yield self._tile(pin(step, "low"), tuple(pinned_values(step, "low")) or (step.title,))

    def _plan(self, step: Step, split: SplitName) -> Plan:
        steps = (step,) if step.op.kind == "crop" else (_step(resize, side="short"), step)
        return build_plan(replace(self.aug, train=steps, val=steps, views=Views()), split)

    def _tile(self, step: Step, caption: tuple[str, ...]) -> Tile:
        (drawn,) = model_inputs(self._plan(step, "val"), self.photos.first(1), seed=self.seed)
        return Tile(drawn.image, caption)


def _step(op: Callable[..., Any], **params: Any) -> Step:
    (step,) = parse_steps({op.__name__: params}, "preview")
    return step


def _captioned(what: str, phrases: Sequence[str]) -> tuple[str, ...]:
    """Prefix the first phrase with `what`."""
    return (f"{what}: {phrases[0]}", *phrases[1:]) if phrases else (what,)


# --- sheets ---


def recipe_blocks(aug: Aug, split: SplitName, photos: Photos, progress: Progress, *, seed: int) -> list[SheetBlock]:
    """Show each step on the first photo, except steps that mix images. Then show the whole recipe on all photos."""
    plan = build_plan(aug, split)
    renderer = StepRenderer(aug, photos.first(1), seed)
    shown: list[tuple[Step, str]] = []  # each step once, with the view that has it first
    for own in plan.per_view:
        others = [step for step, _ in shown]
        view = f"view {own.view}" if own.view != plan.view else ""
        shown += [(step, view) for step in (own.crop, *own.tree) if not step.mixes and step not in others]
    rows = []
    for step, view in progress.track(shown, description="Drawing"):
        chance = f"p {step.p:.4g}" if "p" in step.op.params else ""
        rows.append(renderer.row(step, [", ".join(filter(None, [view, chance, *step_settings(step)]))]))
    how = "applied to every image, at the low end, the middle and the high end of its ranges"
    return [SheetBlock("Single steps", how, tuple(rows)), _recipe_block(plan, aug, photos, seed)]


def _recipe_block(plan: Plan, aug: Aug, photos: Photos, seed: int) -> SheetBlock:
    """Show the model inputs: a row for each photo, a column for each draw and view."""
    views = [f"{number} {own.view}".strip() for number, own in enumerate(plan.per_view, 1)]
    # Validation images are the same in every epoch.
    epochs = max(1, DRAWS // len(views)) if plan.split == "train" else 1
    tiles = [[Tile(drawn.image, ("original",))] for drawn in model_inputs(_whole_photos_plan(aug), photos, seed=0)]
    for drawn in model_inputs(plan, photos, seed=seed, epochs=epochs):
        done = drawn.done or (f"only {plan.crop.title}",)
        which = f"draw {drawn.epoch + 1}, view {views[drawn.view]}"
        tiles[drawn.photo].append(Tile(drawn.image, _captioned(which, done) if len(views) > 1 else done))
    window = " with a random window" if plan.crop.op.random else ""
    steps = ", then the steps below each image" if plan.tree else ""
    rows = tuple(SheetRow(tuple(row)) for row in tiles)
    return SheetBlock("Whole recipe", f"the model input: {plan.crop.title}{window}{steps}", rows)


def _whole_photos_plan(aug: Aug) -> Plan:
    """Return the plan that only shows whole images."""
    return build_plan(replace(aug, val=(_step(letterbox, fill=255),), views=Views()), "val")


def channel_blocks(aug: Aug, split: SplitName, photos: Photos, *, seed: int) -> list[SheetBlock]:
    """Show each channel of each photo, before and after the recipe."""
    pixels, plan = aug.pixels, build_plan(aug, split)
    captions = [(f"channel {name}",) for name in channel_names(pixels)]
    before = {drawn.photo: drawn for drawn in model_inputs(_whole_photos_plan(aug), photos, seed=0)}
    after = {drawn.photo: drawn for drawn in model_inputs(plan, photos, seed=seed) if drawn.view == 0}
    blocks, files = [], list[Any](photos.split.files)
    for photo, file in enumerate(files):
        rows = list[SheetRow]()
        for drawn, title in ((before[photo], "original"), (after[photo], f"{split}: {plan.crop.title}")):
            shown = drawn.levels if pixels.is_rgb else stretch(drawn.levels, _limits(file))
            channels = np.repeat(np.moveaxis(shown, -1, 0)[..., None], 3, axis=-1)  # (channels, height, width, 3)
            tiles = list(map(Tile, channels, captions))
            first, *others = in_rows(tiles, max(1, 1800 // max(SMALLEST, *plan.size)))
            rows += [SheetRow(first, ", ".join([title, *drawn.done])), *map(SheetRow, others)]
        text = str(pixels) if pixels.is_rgb else f"{pixels}, each stretched from percentile 2 to percentile 98"
        blocks.append(SheetBlock(portable_name(file), text, tuple(rows)))
    return blocks


def ops_blocks(aug: Aug, names: Sequence[str], photos: Photos, progress: Progress, *, seed: int) -> list[SheetBlock]:
    """Show ops with their default parameters on the first photo, a block for each kind. A mosaic uses four photos."""
    renderer = StepRenderer(aug, photos, seed)
    kinds: dict[str, list[SheetRow]] = {kind: [] for kind in get_args(OpKind)}
    for name in progress.track(names, description="Drawing"):
        kinds[OPS[name].kind].append(_op_row(renderer, OPS[name]))
    return [SheetBlock(kind.capitalize(), "", tuple(rows)) for kind, rows in kinds.items() if rows]


def _op_row(renderer: StepRenderer, op: Op) -> SheetRow:
    doc = op.doc.split("\n")[0].replace("`", "")
    # A policy chooses among the first two geometry ops and the first two color ops with random parameters.
    geometry = [other.name for other in OPS.values() if other.draws and other.kind == "geometry"]
    color = [other.name for other in OPS.values() if other.draws and other.kind == "color"]
    example = {"steps": dict.fromkeys(geometry[:2] + color[:2])}
    try:
        (step,) = parse_steps({op.name: example if op.nests else {}}, "preview")
        return renderer.row(step, [doc, ", ".join(step_settings(step))])
    except UserError as error:
        return SheetRow((), op.name, (doc, f"not shown: {str(error).removeprefix('preview.')}"))
