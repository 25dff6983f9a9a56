"""`python -m trainer compare RUN_OR_SWEEP ...`: compare settings across runs and sweeps, over seeds and folds."""

from collections.abc import Sequence
from pathlib import Path

from augment.cli.parser import one_of, output, positive_number, readable_errors, table_console, writing
from augment.support.errors import UserError, suggest
from augment.support.files import write_atomically, write_json
from augment.support.formatting import amount
from trainer.run.folder.reader import STRESS, RunFolder, find_runs
from trainer.run.folder.run_names import RunParser
from trainer.sweeps.comparison import compare_runs
from trainer.sweeps.verdict_text import markdown_page, present

_EXAMPLES = """\
  outputs                                        all runs in outputs/, grouped by their settings
  SWEEP --baseline aug.train.rotate.p=0          the settings of a sweep, compared with no rotation
  SWEEP RUN --metric val_loss --detect 0.02      another score, and the smallest difference worth detecting
  SWEEP --out comparison.md --out comparison.json"""

_EPILOG = """

Runs that differ only in seed and data.fold are replicates. Scores are from the last epoch, because the best of
several epochs is too optimistic. Runs that failed, were interrupted or were pruned do not count. Runs that stopped
early count only if all runs of their configuration stopped early."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return the exit code."""
    parser = _make_parser()
    with readable_errors():
        options, paths, _ = parser.split_paths(arguments)
        for file in options.out:
            if file.suffix not in (".md", ".json"):
                raise UserError(f"--out {file}: unknown format. Choose a name that ends in .md or .json.")
        runs = _find_runs(paths, options.metric)
        compared, left = compare_runs(runs, options.baseline, options.metric, options.detect)
        console = table_console()
        if compared is None:
            present(console, [f"Nothing to compare in {amount(len(runs), 'run')}.", left])
            return 1
        if options.split:
            compared = compared.with_test()
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


def _make_parser() -> RunParser:
    parser = RunParser(
        "trainer compare",
        "Compare settings across runs and sweeps, over seeds and folds.",
        _EXAMPLES + _EPILOG,
        arguments="RUN_OR_SWEEP ...",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="configuration to compare with, as the table names it, or one of its runs. Default: the "
        "starting configuration of a search, or the first with several seeds, or the first configuration",
    )
    parser.add_argument(
        "--metric",
        metavar="KEY",
        help="score to compare: a key of metrics.jsonl, or stress. Default: the task's main score",
    )
    parser.add_argument(
        "--detect",
        type=positive_number(),
        metavar="D",
        help="smallest difference worth detecting, in points for scores in [0, 1]. Default: 0.5 points, or 1%% of the "
        "baseline's mean for other scores",
    )
    parser.add_argument(
        "--out",
        type=output,
        action="append",
        default=[],
        metavar="FILE",
        help="file to write, .md or .json. Can be given twice",
    )
    parser.add_argument(
        "--split", type=one_of("test"), metavar="test", help="also show test scores, which do not change the order"
    )
    return parser


def _find_runs(paths: Sequence[Path], metric: str | None) -> list[RunFolder]:
    """Return the runs in folders.

    Raises:
        UserError: there is no run, or no run has the metric.
    """
    runs = find_runs(paths)
    if not runs:
        raise UserError(
            f"{', '.join(map(str, paths))}: no runs found. Pass folders of runs or sweeps, or folders that contain "
            "them."
        )
    known = {name for run in runs for name in run.last}
    if (metric or "").startswith("test_"):
        raise UserError(
            f"--metric {metric}: choosing by test scores makes them too optimistic. Use a val_ score. To also show "
            "test scores, add --split test."
        )
    if metric is not None and metric not in known:
        hint = " Run python -m trainer stress RUN." if metric == STRESS else suggest(metric, known)
        raise UserError(f"--metric {metric}: no run has this score.{hint}")
    return runs
