"""`python -m trainer stress RUN`: score the best model of a run on corrupted images, and show its weaknesses."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from augment.cli.parser import readable_errors, table_console, whole_number, writing
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount
from trainer.run.folder.reader import STRESS_FILE
from trainer.run.folder.run_names import RunParser

if TYPE_CHECKING:
    from trainer.stress.scores import StressTest

IMAGES = 500  # default number of images
PAGE_FILE = "stress.html"

_EXAMPLES = """\
  RUN                                 the usual corruptions, on up to 500 validation images
  RUN --ops jpeg,motion_blur          only these ops. Any op that changes each image separately is allowed
  RUN --images 5000 fit.device=cuda   up to 5,000 images, on a GPU
  RUN data=folder data.root=DIR       the validation images of another source

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. The result is written to stress.json and
stress.html in that folder. To rank runs by their mean score, use compare --metric stress."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Score the best model of a run under one corruption at a time, at five strengths."
    parser = RunParser("trainer stress", description, _EXAMPLES, arguments="RUN [key=value ...]")
    parser.add_argument(
        "--ops", metavar="NAME,...", help="ops to test (default: effects of cameras and file formats, and plugin ops)"
    )
    parser.add_argument("--images", type=whole_number(1), default=IMAGES, metavar="N",
                        help=f"largest number of images (default: {IMAGES:,})")  # fmt: skip
    parser.add_trust_flag()
    with readable_errors():
        options, (run,), overrides = parser.split_paths(arguments)
        names = tuple(filter(None, (options.ops or "").split(",")))
        overrides = [override.lstrip("+") for override in overrides]
        stress(run, overrides, names, options.images, trust=options.trust)
    return 0


def stress(
    run: Path, overrides: Sequence[str] = (), ops: Sequence[str] = (), images: int = IMAGES, *, trust: bool = False
) -> None:
    """Score the best model of a run under corruptions. Print a table, and write stress.json and stress.html.

    Args:
        run: folder of the run.
        overrides: `key=value` overrides of the run's configuration.
        ops: names of ops. Default: see `trainer.stress.corruptions.corruptions`.
        images: largest number of images.
        trust: whether the run may name code to import, see `augment.cli.trust`.

    Raises:
        UserError: the folder is not a run, or the ops or images cannot be used.
    """
    from trainer.run.best_model import load_best_model  # PyTorch takes seconds to import
    from trainer.stress.corruptions import corruptions
    from trainer.stress.page import render
    from trainer.stress.scores import stress_test
    from trainer.tools.evaluate import evaluated_split

    trained = load_best_model(run, overrides, trust=trust)
    tested = corruptions(ops)
    result = stress_test(trained, evaluated_split(trained, None), tested, images)
    console = table_console()
    _print_result(result, console)
    with writing(f"{run / PAGE_FILE}"):
        write_json(run / STRESS_FILE, result.plain())
        write_atomically(run / PAGE_FILE, render(result))
    console.print(f"{run / PAGE_FILE}, .json", highlight=False, soft_wrap=True)


def _print_result(result: "StressTest", console: Console) -> None:
    """Print the scores under each corruption, the clean score, the worst corruptions, and the untested ones."""
    from trainer.stress.scores import NO_DROP

    table = Table("corruption", "mild", "severe", "mean", "change")
    for weakness in result.weaknesses:
        values = weakness.scores[0].value, weakness.scores[-1].value, weakness.mean
        cells = (*map(result.show, values), result.change(weakness.mean))
        table.add_row(Text(weakness.corruption.name), *cells)
    table.add_row(Text("mean of all"), "", "", result.show(result.mean), result.change(result.mean))
    console.print(table)
    score = f"{result.title} without corruption: {result.show(result.clean.value)} ({amount(result.images, 'image')})"
    worst = [f"Worst: {sentence}" for sentence in result.sentences()] or [NO_DROP]
    skipped = [f"{name} was left out: {why}" for name, why in result.left_out.items()]
    if len(skipped) > 2:
        skipped = [f"{len(skipped)} corruptions were left out: {', '.join(result.left_out)}. The page states why."]
    for line in (score, *worst, *skipped):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
