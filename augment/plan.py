"""The plan: what will be done to the pictures of a split, grouped into stages. Pure data and NumPy, no DALI."""

from dataclasses import dataclass, field
from hashlib import blake2b

from augment.config import IMAGENET_MEAN, IMAGENET_STD, Aug, SplitName, Step, Views, parse_steps
from augment.layout import places_of, stages_of
from augment.ops.crops import resize as _resize
from augment.stage import Stage
from augment.wording import amount


@dataclass(frozen=True)
class Plan:
    """What is done to every picture of a split: crop, stages, normalization.

    `str(plan)` is for people; `plan.digest` tells whether two plans are the same.

    Attributes:
        split: train or val.
        size: side of the square in pixels.
        crop: which part of the picture becomes (size, size).
        stages: in order.
        mean: subtracted from RGB in 0..1.
        std: divided by, in 0..1.
        tree: the steps as they are chosen, policies with what is within; without those of p = 0.
        skipped: steps with p = 0, which are not in the plan.
        views: how many pictures are made of each picture.
    """

    split: SplitName
    size: int
    crop: Step
    stages: tuple[Stage, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    tree: tuple[Step, ...] = ()
    skipped: tuple[Step, ...] = ()
    views: Views = field(default_factory=Views)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all stages, in order; a step within a policy has its path as key, and for p its chance."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def image_stages(self) -> tuple[Stage, ...]:
        """The stages that each picture goes through by itself."""
        return tuple(stage for stage in self.stages if stage.kind != "batch")

    @property
    def batch_stages(self) -> tuple[Stage, ...]:
        """The stages that mix samples."""
        return tuple(stage for stage in self.stages if stage.kind == "batch")

    @property
    def draws_in_dali(self) -> bool:
        """Whether DALI itself draws anything: the window of a crop, or noise."""
        return self.crop.op.random or any(step.op.random for step in self.steps)

    @property
    def checkpoints(self) -> bool:
        """Whether DALI can save the state of all operators."""
        return all(step.op.checkpoints for step in self.steps)

    @property
    def digest(self) -> str:
        """A hash of everything that decides about pixels, to the last digit."""
        stages = [(s.kind, s.border, [[_identity(step) for step in place] for place in s.places]) for s in self.stages]
        tree = [_identity(step) for step in self.tree]
        whole = (self.split, self.size, _identity(self.crop), stages, tree, self.mean, self.std, self.views)
        return blake2b(repr(whole).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        views = f", {self.views.count} views, {self.views.crop} crop" if self.views.count > 1 else ""
        lines = [f"{self.split}: {self.size} x {self.size} px{views}"]
        lines.append(f"  crop      {str(self.crop).replace('  p 1', '')}")
        lines += [line for stage in self.image_stages for line in _lines(stage)]
        lines.append(f"  normalize mean {_list(self.mean)}, std {_list(self.std)}")
        lines += [line for stage in self.batch_stages for line in _lines(stage)]
        if self.skipped:
            lines.append(f"  left out (p 0): {', '.join(step.key for step in self.skipped)}")
        return "\n".join(lines)


def _identity(step: Step) -> tuple[object, ...]:
    params = sorted(step.params.items(), key=lambda item: item[0])
    return step.key, step.op.name, step.p, params, step.weight, [_identity(s) for s in step.steps]


def _lines(stage: Stage) -> list[str]:
    if stage.kind in ("local", "batch") and len(stage.steps) == 1:
        return [f"  {stage.kind:<9} {stage.steps[0]}"]
    return [f"  {stage.kind:<9} {_what(stage)}", *(f"    {step}" for step in stage.steps)]


def _what(stage: Stage) -> str:
    mode, fill = stage.border
    alternatives = max(len(place) for place in stage.places)
    count = f"{amount(len(stage.steps), 'step')} in one"
    if stage.kind == "color":
        return f"{count} color matrix" + (" and the picture's mean" if stage.looks else "")
    if stage.kind == "geometry":
        return f"{count} warp, border {mode}" + (f" {fill}" if mode == "constant" else "")
    return f"{stage.steps[0].op.name}, one of {alternatives}"


def _list(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def build_plan(aug: Aug, split: SplitName) -> Plan:
    """Group the steps of a split into stages.

    Adjacent geometry steps with one border become one stage, and so do adjacent color steps, unless `aug.fuse` is
    false. A step with p = 0 is left out, and its neighbors are adjacent. What is chosen within a policy is a matter of
    the draws: its steps join the stages around them.
    """
    steps = aug.steps(split)
    crop = steps[0] if steps and steps[0].op.kind == "crop" else parse_steps({_resize.__name__: None}, "")[0]
    rest = [step for step in steps if step.op.kind != "crop"]
    tree = tuple(pruned for step in rest if (pruned := _prune(step)) is not None)
    return Plan(
        split=split,
        size=aug.size,
        crop=crop,
        stages=tuple(stages_of(places_of(tree), fuse=aug.fuse)),
        mean=aug.mean or IMAGENET_MEAN,
        std=aug.std or IMAGENET_STD,
        tree=tree,
        skipped=tuple(step for step in rest if step.p == 0),
        views=aug.views if split == "train" else Views(),
    )


def _prune(step: Step) -> Step | None:
    """Leave out policies without effect; within a policy p = 0 is kept, for its chance to be chosen counts."""
    if step.p == 0:
        return None
    return step if any(True for _ in step.leaves()) else None


if __name__ == "__main__":
    import sys

    from augment.show_plan import main

    sys.exit(main())
