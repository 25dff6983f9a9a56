"""The plan: all changes to the images of a split, grouped into stages. It is pure data, without DALI."""

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from augment.params import Size
from augment.params.pixel_format import RGB, PixelFormat
from augment.recipe.channel_adaptation import adapt_steps
from augment.recipe.fusion import positions_of, stages_of
from augment.recipe.ops.crops import resize as _resize
from augment.recipe.stage import Stage, StageKind
from augment.recipe.step import Step, parse_steps
from augment.recipe.steps import IMAGENET_MEAN, IMAGENET_STD, SPLITS, Aug, SplitName
from augment.recipe.views import Views
from augment.support.errors import UserError, suggest
from augment.support.formatting import amount, html_table

_SPLIT_ALIASES = {"training": "train", **dict.fromkeys(("valid", "validation", "validate", "test", "dev"), "val")}


@dataclass(frozen=True)
class Plan:
    """All changes to the images of a split: crop, stages, normalization.

    `str(plan)` describes the plan. Plans with the same `plan.digest` change images in the same way, given the same
    seed.

    Attributes:
        split: train or val.
        size: height and width of the output in pixels.
        crop: the step that brings an image of any size to that size.
        stages: the stages in order.
        mean: mean of each channel in 0..1, to subtract.
        std: standard deviation of each channel in 0..1, to divide by.
        tree: the steps after the crop as the recipe nests them, without top-level steps with p = 0.
        skipped: steps with p = 0, which are not in the plan.
        left_out: ops that were removed from policies, because they need red, green and blue.
        rules: min_visible, min_area and fill_label, which are rules for targets.
        views: the recipe's views of each image.
        view: the name of the plan's view. Empty if views have no names.
        shared: names of the steps that share the random draws of the first view.
        others: the plans of the views after the first.
        pixels: the pixel format of the images.
    """

    split: SplitName
    size: Size
    crop: Step
    stages: tuple[Stage, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tree: tuple[Step, ...] = ()
    skipped: tuple[Step, ...] = ()
    left_out: tuple[str, ...] = ()
    rules: tuple[float, float, int] = (0.0, 0.0, 255)
    views: Views = field(default_factory=Views)
    view: str = ""
    shared: frozenset[str] = frozenset()
    others: tuple["Plan", ...] = ()
    pixels: PixelFormat = RGB

    @property
    def per_view(self) -> tuple["Plan", ...]:
        """The plan of each view, starting with this plan for the first view."""
        return (self, *self.others)

    @property
    def path(self) -> str:
        return f"aug.views.{self.view}.steps" if self.view else f"aug.{self.split}"

    def shared_results(self, first: "Plan") -> int:
        """Return how many results this view shares with the first view.

        The first result is the cropped image. The others are the results of the stages, in order.
        """
        if self.crop.key not in self.shared or (self.size, self.crop) != (first.size, first.crop):
            return 0
        count = 1
        for own, other in zip(self.image_stages, first.image_stages, strict=False):
            if own != other or not _keys(own) <= self.shared:
                break
            count += 1
        return count

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all stages, in order. Within a policy, key is the path and p the overall probability."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def image_stages(self) -> tuple[Stage, ...]:
        """The stages that transform each image separately."""
        return tuple(stage for stage in self.stages if stage.kind != "batch")

    @property
    def batch_stages(self) -> tuple[Stage, ...]:
        """The stages that mix samples."""
        return tuple(stage for stage in self.stages if stage.kind == "batch")

    @property
    def moving(self) -> "Plan":
        """The plan with only the stages that move pixels, and their steps."""
        return self._with(tuple(stage for stage in self.image_stages if stage.moves))

    def only(self, *kinds: StageKind) -> "Plan":
        return self._with(tuple(stage for stage in self.stages if stage.kind in kinds))

    def _with(self, stages: tuple[Stage, ...]) -> "Plan":
        keys = set().union(*map(_keys, stages))
        return replace(self, stages=stages, tree=tuple(step for step in self.tree if step.key in keys))

    @property
    def draws_in_dali(self) -> bool:
        """Whether DALI itself draws random numbers, for a crop window or for noise."""
        return any(step.op.random for plan in self.per_view for step in (plan.crop, *plan.steps))

    @property
    def checkpoints(self) -> bool:
        """Whether DALI can checkpoint all operators."""
        return all(step.op.checkpoints for plan in self.per_view for step in plan.steps)

    @property
    def digest(self) -> str:
        """A hash of everything that determines the pixels, at full precision."""
        stages = list(map(_stage_identity, self.stages))
        tree = list(map(_identity, self.tree))
        # Add named views only if there are any, because older versions did not support them.
        named = [[(plan.digest, sorted(plan.shared)) for plan in self.others]] if self.view and self.others else []
        whole = (
            self.split,
            self.size.plain,
            _identity(self.crop),
            stages,
            tree,
            self.mean,
            self.std,
            self.views,
            *named,
            *([] if self.pixels == RGB else [self.pixels]),  # older digests lack the pixel format
        )
        return blake2b(repr(whole).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        if self.views.named:
            return "\n".join([f"{self.split}: {amount(len(self.per_view), 'view')}", *self._view_lines()])
        views = f", {self.views.count} views, {self.views.crop} crop" if self.views.count > 1 else ""
        pixels = "" if self.pixels.is_rgb else f", {self.pixels}"
        return "\n".join([f"{self.split}: {_pixels(self.size)}{views}{pixels}", *self._lines()])

    def __repr__(self) -> str:
        return f"Plan({self.split}, {_pixels(self.size)}, {amount(len(self.steps) + 1, 'step')})"

    def _repr_html_(self) -> str:
        """Return an HTML table of the steps, for notebooks."""
        stages = [("crop", self.crop), *((stage.kind, step) for stage in self.stages for step in stage.steps)]
        rows = [(kind, step.title, f"{step.p:.4g}", ", ".join(step.settings)) for kind, step in stages]
        title = f"{self.path}, {_pixels(self.size)}"
        table = html_table(("stage", "step", "p", "parameters"), rows, title=title)
        named = {plan.view: plan for plan in self.others if plan.view not in ("", self.view)}
        return table + "".join(plan._repr_html_() for plan in named.values())

    def _view_lines(self) -> list[str]:
        plans = {plan.view: plan for plan in reversed(self.per_view)}
        lines = []
        for view in self.views.named:
            plan = plans[view.name]
            times = f"{view.count} times, " if view.count > 1 else ""
            shared = f", sharing {', '.join(view.share)}" if view.share and plan.view != self.view else ""
            lines += [f" {view.name}: {times}{_pixels(plan.size)}{shared}", *plan._lines()]
        return lines

    def _lines(self) -> list[str]:
        lines = [f"  crop      {str(self.crop).replace('  p 1', '')}"]
        lines += [line for stage in self.image_stages for line in _lines(stage)]
        lines.append(f"  normalize mean {_list(self.mean)}, std {_list(self.std)}")
        lines += [line for stage in self.batch_stages for line in _lines(stage)]
        if self.skipped:
            lines.append(f"  left out (p 0): {', '.join(step.key for step in self.skipped)}")
        if self.left_out:
            lines.append(f"  left out (need RGB): {', '.join(self.left_out)}")
        return lines


def _identity(step: Step) -> tuple[object, ...]:
    given = {n: value for n, value in step.params.items() if n != "per_channel" or value}  # older digests lack it
    params = sorted(given.items(), key=lambda item: item[0])
    return step.key, step.op.name, step.p, params, step.weight, list(map(_identity, step.steps))


def _keys(stage: Stage) -> set[str]:
    """Return the names of a stage's steps in the recipe."""
    return {step.key.split(".")[0] for step in stage.steps}


def _stage_identity(stage: Stage) -> tuple[object, ...]:
    positions = [list(map(_identity, alternatives)) for alternatives in stage.positions]
    chained = ["chained"] if stage.chained else []  # older digests lack it
    return stage.kind, stage.border, positions, *chained


def _lines(stage: Stage) -> list[str]:
    if stage.kind in ("local", "batch") and len(stage.steps) == 1:
        return [f"  {stage.kind:<9} {stage.steps[0]}"]
    return [f"  {stage.kind:<9} {_summary(stage)}", *(f"    {step}" for step in stage.steps)]


def _summary(stage: Stage) -> str:
    fused = f"{amount(len(stage.steps), 'step')} in one"
    if stage.kind == "color":
        mean = " and the image's mean" if stage.uses_mean else ""
        if stage.chained:
            return f"{fused} chain of color matrices{mean}, clipped after each"
        return f"{fused} color matrix{mean}"
    if stage.kind in ("geometry", "remap"):
        mode, fill = stage.border
        level = f" {fill}" if mode == "constant" else ""
        return f"{fused} warp, border {mode}{level}"
    return f"{stage.steps[0].op.name}, one of {max(map(len, stage.positions))}"


def _pixels(size: Size) -> str:
    return f"{size.height} x {size.width} px"


def _list(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def build_plan(aug: Aug, split: SplitName) -> Plan:
    """Compile the steps of a split into a plan.

    Adjacent geometry and remap steps with the same border become one stage. Adjacent color steps also become one stage.
    `aug.fuse=false` turns off both. Steps with p = 0 are left out, which makes their neighbors adjacent. Steps within a
    policy also fuse with the stages around them, because only the sampler decides which steps apply to a sample.

    Raises:
        UserError: the split is unknown, images lack channels that a step needs, or `aug.mean` or `aug.std` is not known
            for each channel.
    """
    if split not in SPLITS:
        raise UserError(f"split={split}: unknown name.{suggest(str(split), SPLITS, _SPLIT_ALIASES)}")
    if split == "val":
        return _build(aug, split, aug.val, Views())
    if not aug.views.named:
        plan = _build(aug, split, aug.train, aug.views)
        shared = frozenset([plan.crop.key] if aug.views.crop == "same" else [])
        return replace(plan, others=(replace(plan, views=Views(), shared=shared),) * (aug.views.count - 1))
    plans = []
    for view in aug.views.named:
        plan = _build(replace(aug, size=view.size or aug.size), split, view.steps, Views())
        plans += [replace(plan, view=view.name, shared=frozenset(view.share))] * view.count
    return replace(plans[0], views=aug.views, others=tuple(plans[1:]))


def _build(aug: Aug, split: SplitName, steps: tuple[Step, ...], views: Views) -> Plan:
    crop = steps[0] if steps and steps[0].op.kind == "crop" else parse_steps({_resize.__name__: None}, "")[0]
    rest = [step for step in steps if step.op.kind != "crop"]
    # Within a policy, steps with p = 0 stay, because they can be chosen.
    pruned = [step for step in rest if step.p > 0 and any(step.leaves())]
    adapted, left_out = adapt_steps(pruned, aug.pixels, f"aug.{split}")
    tree = tuple(step for step in adapted if any(step.leaves()))
    return Plan(
        split=split,
        size=aug.size,
        crop=crop,
        stages=tuple(stages_of(positions_of(tree), fuse=aug.fuse, clip=aug.clip)),
        mean=_for_channels("mean", aug, IMAGENET_MEAN),
        std=_for_channels("std", aug, IMAGENET_STD),
        tree=tree,
        skipped=tuple(step for step in rest if step.p == 0),
        left_out=left_out,
        # In validation, tiny objects also have to be found.
        rules=(aug.min_visible, aug.min_area if split == "train" else 0.0, aug.fill_label),
        views=views,
        pixels=aug.pixels,
    )


def _for_channels(name: str, aug: Aug, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return `aug.mean` or `aug.std`, one number for each channel."""
    given, measured = getattr(aug, name), getattr(aug.pixels, name)
    if not (isinstance(given, tuple) or measured) and (given == "auto" or aug.pixels.channels != len(default)):
        count = amount(aug.pixels.channels, "channel")
        raise UserError(f"aug.{name}: measuring {count} needs training images. Set one number for each channel.")
    values = given if isinstance(given, tuple) else measured or default
    if len(values) != aug.pixels.channels:
        raise UserError(
            f"aug.{name} has {amount(len(values), 'number')}, but images have "
            f"{amount(aug.pixels.channels, 'channel')}. Set one number for each channel."
        )
    return tuple(values)
