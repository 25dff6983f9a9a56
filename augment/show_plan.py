"""`python -m augment.plan`: show what a recipe does to the pictures, or what differs between two recipes."""

import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from augment.command import Parser, one_of, readable_errors
from augment.compose import Recipe, compose_recipe, key_of, parse
from augment.config import Aug, SplitName
from augment.difference import Change, diff_settings, diff_steps
from augment.errors import UserError
from augment.plan import Plan, build_plan

SPLITS: tuple[SplitName, ...] = ("train", "val")

_EXAMPLES = """\
  python -m augment.plan +aug=imagenette aug.train.rotate.p=.2
  python -m augment.plan +aug=imagenette aug.size=64 --against imagenette
  python -m augment.plan +aug=imagenette --against +aug=imagenette ~aug.train.flip

Overrides are those of python -m trainer; model, fit and callbacks change nothing here. With --against, changes are
shown as `old -> new`, the old recipe being the one after --against: + added, - removed, > moved, ~ changed.
"""

_COLORS = {"added": "green", "removed": "red", "moved": "cyan", "changed": "yellow"}


def summary(aug: Aug, plan: Plan) -> str:
    """Return the number of steps, what they are carried out as, and the plan's digest, in one line.

    A policy is one step; a split without a crop is resized, which counts as its crop.
    """
    steps = [step for step in aug.steps(plan.split) if step.p > 0 and step.op.kind != "crop"]
    kinds: dict[str, int] = {"crop": 1} | Counter(stage.kind for stage in plan.stages)
    stages = ", ".join(_count(count, *_nouns(kind)) for kind, count in kinds.items())
    return f"{_count(1 + len(steps), 'step', 'steps')}: {stages}; digest {plan.digest}"


def _nouns(kind: str) -> tuple[str, str]:
    """Return what a stage is called, one and several."""
    known = {"crop": ("crop", "crops"), "geometry": ("warp", "warps"), "color": ("color matrix", "color matrices")}
    return known.get(kind, (f"{kind} op", f"{kind} ops"))


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def devices(aug: Aug, plan: Plan) -> str:
    """Say in a line what runs where."""
    decoding = {"mixed": "decoding on GPU and CPU", "cpu": "decoding on the CPU", "auto": "decoding by trial"}[
        aug.decode
    ]
    cache = "" if aug.cache == "off" else f", cache {aug.cache}" + (" MiB" if isinstance(aug.cache, int) else "")
    line = (
        f"with a GPU {decoding}{cache}, all else on the GPU; without one all on the CPU; {aug.prefetch} batches ahead"
    )
    visitors = [step.key for step in plan.steps if step.op.on_cpu]
    return line + (f"; on the CPU in any case: {', '.join(visitors)}" if visitors else "")


def show(aug: Aug, splits: Sequence[SplitName], console: Console) -> None:
    """Print the plans of splits."""
    for split in splits:
        plan = build_plan(aug, split)
        console.print(str(plan))
        console.print(f"  {summary(aug, plan)}", style="dim")
        console.print(f"  {devices(aug, plan)}", style="dim")


def show_difference(old: Aug, new: Aug, splits: Sequence[SplitName], console: Console) -> None:
    """Print what differs between two recipes: settings, then steps by split."""
    if settings := diff_settings(old, new):
        console.print("settings")
        _show_changes(settings, console)
    for split in splits:
        before, after = build_plan(old, split).digest, build_plan(new, split).digest
        console.print(f"{split}: the plan stays {after}" if before == after else f"{split}: plan {before} -> {after}")
        changes = diff_steps(old.steps(split), new.steps(split))
        if not changes:
            console.print("  the steps are the same", style="dim")
        _show_changes(changes, console)


def _show_changes(changes: Sequence[Change], console: Console) -> None:
    for change in changes:
        console.print(Text(f"  {change}", _COLORS[change.what]))


def _note(recipe: Recipe, overrides: Sequence[str]) -> str | None:
    """Say so where the trainer would fill in mean and std by a model that nobody here knows."""
    about_model = any(key_of(parse(token)).split(".")[0] == "model" for token in overrides)
    if about_model and (recipe.aug.mean is None or recipe.aug.std is None):
        return "mean and std are ImageNet's here; in training a pretrained model brings its own"
    return None


def _other(tokens: Sequence[str]) -> Recipe:
    """Compose the recipe to compare with, in which a bare word is a file of conf/aug."""
    try:
        return compose_recipe([token if "=" in token or token[0] == "~" else f"+aug={token}" for token in tokens])
    except UserError as error:
        raise UserError(f"--against: {error}") from error


def _parser() -> Parser:
    parser = Parser("augment.plan", "Show what is done to the pictures, or compare two recipes.", _EXAMPLES)
    parser.add_argument("--split", type=one_of(*SPLITS), metavar="train|val", help="only this split")
    parser.add_argument(
        "--against",
        nargs="+",
        metavar="RECIPE",
        help="show what differs from another recipe: the name of a file of conf/aug, or overrides of its own, complete",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        splits = SPLITS if options.split is None else (options.split,)
        console = Console(highlight=False, markup=False, soft_wrap=True)
        recipe = compose_recipe(overrides)
        if options.against:
            show_difference(_other(options.against).aug, recipe.aug, splits, console)
        else:
            show(recipe.aug, splits, console)
            if note := _note(recipe, overrides):
                console.print(note, style="dim")
    return 0
