"""`python -m trainer report RUN_FOLDER`: write the report of a run again from the files in its folder."""

import sys
from collections.abc import Sequence

from jinja2 import TemplateError

from augment.cli.parser import readable_errors, writing
from augment.support.errors import UserError, describe_error
from augment.support.files import require_in
from augment.support.formatting import printable
from augment.support.untrusted_files import damage_errors
from trainer.report.page import write_record
from trainer.report.run_content import REPORT_FILE, read_record
from trainer.run.config.schema import ALLOWED_RUN, CONFIG_FILE
from trainer.run.folder.run_names import RunParser

_EXAMPLES = """\
  RUN_FOLDER ...     write report.html again in each folder
  last               write the report of the newest run again"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Return the exit code."""
    parser = RunParser("trainer report", "Write the reports of runs again.", _EXAMPLES, arguments="RUN_FOLDER ...")
    with readable_errors():
        _, folders, _ = parser.split_paths(arguments)
        for folder in folders:
            require_in(folder, CONFIG_FILE, allowed=ALLOWED_RUN)
        for folder in folders:
            with writing(f"{folder / REPORT_FILE}"):
                try:
                    file = write_record(read_record(folder))
                except damage_errors(TemplateError) as error:
                    raise UserError(
                        f"{folder}: its files do not match each other ({describe_error(error)}). Restore them."
                    ) from error
                sys.stdout.write(printable(f"{file}\n"))
    return 0
