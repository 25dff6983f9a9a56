"""`python -m trainer labels RUN`: print how many training labels are probably wrong, and which ones."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path

from rich.table import Table
from rich.text import Text

from augment.cli.parser import output_file, readable_errors, table_console, whole_number, writing
from augment.support.errors import UserError
from augment.support.files import json_line, require_in, write_atomically
from augment.support.formatting import printable
from augment.support.untrusted_files import read_as
from trainer.figures.label_report import PAGE_FILE, REPORT_FILE, LabelReport
from trainer.run.config.schema import ALLOWED_RUN, CONFIG_FILE
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.run_names import RunParser

_EXAMPLES = """\
  RUN                  the estimated share of wrong labels, and the most suspicious samples
  RUN --top 100        more samples
  RUN --json FILE      write JSON instead of a table (- writes to the terminal)

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. RUN/labels.csv lists all samples. Open
RUN/labels.html to review the images."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Print how many training labels are probably wrong, and which ones."
    parser = RunParser("trainer labels", description, _EXAMPLES, arguments="RUN")
    parser.add_argument("--top", type=whole_number(0), default=20, metavar="N", help="number of samples (default: 20)")
    parser.add_argument("--json", type=output_file, metavar="FILE",
                        help="write JSON instead of a table (- writes to the terminal)")  # fmt: skip
    with readable_errors():
        options, (run,), _ = parser.split_paths(arguments)
        report = _read_report(run)
        report = replace(report, suspects=tuple(replace(one, uri="") for one in report.suspects[: options.top]))
        text = json_line(asdict(report))
        if options.json == "-":
            sys.stdout.write(printable(text))
        elif options.json:
            with writing(f"--json {options.json}"):
                write_atomically(Path(options.json), text, follow=True)
        else:
            _print_report(report, run)
    return 0


def _read_report(folder: Path) -> LabelReport:
    """Read the label audit in the folder of a run."""
    require_in(folder, CONFIG_FILE, allowed=ALLOWED_RUN)
    run = RunFolder(folder)
    if not (folder / REPORT_FILE).is_file():
        raise UserError(
            f"{folder}: this run has no label audit. It is {run.status}, and its task is "
            f"{run.facts.task or 'unknown'}. Classification and multi-label runs write an audit at their end, "
            "unless callbacks.label_audit=null turns it off."
        )
    return read_as(LabelReport, folder / REPORT_FILE)


def _print_report(report: LabelReport, run: Path) -> None:
    """Print a table of the suspicious samples, the estimates, and how to review the images."""
    console, table = table_console(), Table("path", "given", "suggested", "score", "probably wrong")
    for one in report.suspects:
        known = "" if isnan(one.probability) else f"{one.probability:.1%}"
        cells = one.path, one.given or "none", one.suggested or "none", f"{one.score:.2f}", known
        table.add_row(*map(Text, cells))  # Text, because the console would read [words] as markup
    console.print(table)
    page = f"Review the images in {run / PAGE_FILE}."
    again = f"To write this page again, run: python -m trainer report {run}"
    console.print(Text("\n".join([*report.sentences, page, again])), soft_wrap=True)
