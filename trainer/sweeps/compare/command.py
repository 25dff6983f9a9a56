"""`python -m trainer compare RUN_OR_SWEEP ...`: compare settings by their seeds and folds, across runs and sweeps."""

from collections.abc import Sequence
from pathlib import Path

from augment.cli.parser import Parser, output, positive_number, readable_errors, table_console, writing
from augment.support.errors import UserError, suggest
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount
from trainer.run.folder.reader import find_runs
from trainer.sweeps.comparison import compare_runs
from trainer.sweeps.verdict_text import markdown_page, present

_EXAMPLES = """\
  outputs                                        all runs in outputs/, grouped by their settings
  SWEEP --baseline aug.train.rotate.p=0          the settings of a sweep, against those without rotation
  SWEEP RUN --metric val_loss --detect 0.02      by another score, with a smallest difference worth detecting
  SWEEP --out comparison.md --out comparison.json"""

_EPILOG = """

Runs that differ in seed and data.fold alone are replicates. Scores are of the last epoch, because the best one
was chosen by its score. Runs that failed, were interrupted or pruned, or stopped early do not count."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser(
        "trainer compare",
        "Compare settings by their seeds and folds, across runs and sweeps.",
        _EXAMPLES + _EPILOG,
        arguments="RUN_OR_SWEEP ...",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="what to compare with: a configuration, as the table names it, or one of its runs (default: the first, "
        "if possible with several seeds)",
    )
    parser.add_argument("--metric", metavar="KEY", help="score, as in metrics.jsonl (default: that of the task)")
    parser.add_argument(
        "--detect",
        type=positive_number(),
        metavar="D",
        help="smallest difference worth detecting: points for scores in [0, 1] (default: 0.5; else 1%% of the mean)",
    )
    parser.add_argument(
        "--out",
        type=output,
        action="append",
        default=[],
        metavar="FILE",
        help="write the comparison to a file: .md or .json; may be given twice",
    )
    with readable_errors():
        options, paths, others = parser.split_paths(arguments)
        paths += map(Path, others)
        for file in options.out:
            if file.suffix not in (".md", ".json"):
                raise UserError(f"--out {file}: unknown format. Allowed: a name that ends in .md or .json.")
        runs = find_runs(paths)
        if not runs:
            raise UserError(
                f"{', '.join(map(str, paths))}: no runs. Allowed: folders of runs or sweeps, or above them."
            )
        known = {name for run in runs for name in run.last}
        if options.metric is not None and options.metric not in known:
            raise UserError(f"--metric {options.metric}: no run has it.{suggest(options.metric, known)}")
        compared, left = compare_runs(runs, options.baseline, options.metric, options.detect)
        console = table_console()
        if compared is None:
            present(console, [f"None of {amount(len(runs), 'run')} counts.", left])
            return 1
        parts = compared.table(), compared.lines()
        present(console, *parts)
        for file in options.out:
            with writing(f"--out {file}"):
                if file.suffix == ".json":
                    write_json(file, compared.plain(), follow=True)
                else:
                    write_atomically(file, markdown_page(*parts), follow=True)
            present(console, [str(file)])
    return 0
