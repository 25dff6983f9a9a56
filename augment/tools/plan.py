"""Show how a recipe is executed.

The output lists the stages of the recipe, and a digest that is equal for equal plans. The plan is for 8-bit RGB
images, or for the pixel format of your data if you set data.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from augment.cli.compose import compose_recipe
from augment.cli.overrides import key_of, parse
from augment.cli.parser import Parser, readable_errors
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import SPLITS, unit_notices
from augment.support.console import print_plan, text_console
from augment.support.formatting import amount

_EXAMPLES = """\
  python -m augment plan aug=imagenette aug.train.rotate.p=.2                         one recipe
  python -m augment plan aug=imagenette data=folder data.root=DIR                     for the images in DIR
  diff <(python -m augment plan aug=imagenette) <(python -m augment plan aug=strong)  the difference between two

Overrides work as in python -m trainer. The sections model, fit and callbacks have no effect.
"""


def summary(plan: Plan) -> str:
    """Return the number of steps, the number of stages of each kind, and the digest of a plan in one line.

    A policy counts as one step. The resize of a split without a crop counts as its crop. Only the first named view is
    summarized.
    """
    kinds: dict[str, int] = {"crop": 1} | Counter(stage.kind for stage in plan.stages)
    nouns = {"crop": ("crop",), "geometry": ("warp",), "remap": ("remap",), "color": ("color matrix", "color matrices")}
    stages = ", ".join(amount(count, *nouns.get(kind, (f"{kind} op",))) for kind, count in kinds.items())
    view = f"{plan.view}: " if plan.view else ""
    return f"{view}{amount(1 + len(plan.tree), 'step')}: {stages}; digest {plan.digest}"


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        _, overrides = Parser("augment plan", __doc__, _EXAMPLES).split(arguments)
        console = text_console()
        recipe = compose_recipe(overrides)
        aug = recipe.aug
        if any(key_of(parse(override)).split(".")[0] == "data" for override in overrides):
            from augment.data.format_detection import measured  # slow to import
            from augment.data.sources import load_dataset

            aug = replace(aug, pixels=measured(load_dataset(recipe.source()), aug.mean, aug.std))
        for plan in (build_plan(aug, split) for split in SPLITS):
            print_plan(console, str(plan))
            console.print(f"  {summary(plan)}", style="dim")
            if on_cpu := [step.key for step in plan.steps if step.op.on_cpu]:
                console.print(f"  always on the CPU: {', '.join(on_cpu)}", style="dim")
        for doubt in unit_notices(aug):
            console.print(doubt, style="yellow")
    return 0
