"""Notes about steps that are allowed, but probably not meant so."""

from collections.abc import Iterator

from augment.params import Range
from augment.recipe.steps import SPLITS, Aug, Step


def doubts(aug: Aug) -> Iterator[str]:
    """Yield a note about each range that seems to be meant in another unit."""
    for key, step in _keyed(aug):
        for name, param in step.op.params.items():
            if isinstance(param, Range) and (note := param.doubts(step.params[name])):
                yield f"{key}.{name}: {param.show(step.params[name])} changes next to nothing; {note}"


def border_doubts(aug: Aug, unrepeated: str) -> Iterator[str]:
    """Yield a note about each border that repeats parts of the image, but not the targets `unrepeated`, see `Kind`."""
    for key, step in _keyed(aug):
        border = step.params.get("border", "constant")
        if unrepeated and border != "constant":
            yield (
                f"{key}: border {border} repeats parts of the image beyond its edges, without their {unrepeated}; "
                f"{key}.border=constant fills them"
            )


def _keyed(aug: Aug) -> Iterator[tuple[str, Step]]:
    """Yield all steps, those of policies behind them, by their keys."""
    named = {f"aug.views.{v.name}.steps": tuple(s for s in v.steps if s not in aug.train) for v in aug.views.named}
    for key, steps in {**{f"aug.{split}": aug.steps(split) for split in SPLITS}, **named}.items():
        yield from _with_nested(steps, key)


def _with_nested(steps: tuple[Step, ...], key: str) -> Iterator[tuple[str, Step]]:
    for step in steps:
        yield f"{key}.{step.key}", step
        if step.op.nests:
            yield from _with_nested(step.steps, f"{key}.{step.key}.steps")
