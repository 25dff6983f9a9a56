"""`python -m trainer.report RUN_FOLDER`: write the report of a run anew from the files of its folder."""

import sys
from collections.abc import Sequence
from pathlib import Path

from augment.command import USAGE, readable_errors, writing
from augment.errors import UserError
from trainer.report import REPORT_FILE
from trainer.report.page import write_report
from trainer.run import CONFIG_FILE

_USAGE = """\
python -m trainer.report RUN_FOLDER ...       write RUN_FOLDER/report.html anew, of each folder
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        sys.stdout.write(_USAGE)
        return 0 if given else USAGE
    with readable_errors():
        for token in given:
            if token.startswith("-") or ("=" in token and not Path(token).is_dir()):
                raise UserError(f"{token}: not allowed here. Allowed: the folders of runs.")
        folders = [Path(token) for token in given]
        for folder in folders:
            _require_run(folder)
        for folder in folders:
            with writing(f"{folder / REPORT_FILE}"):
                sys.stdout.write(f"{write_report(folder)}\n")
    return 0


def _require_run(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Allowed: the folder of a run.")
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder}: no {CONFIG_FILE} in it. Allowed: the folder of a run.")


if __name__ == "__main__":
    sys.exit(main())
