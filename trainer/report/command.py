"""`python -m trainer report RUN_FOLDER`: write the report of a run again, from the files of its folder."""

import sys
from collections.abc import Sequence

from augment.cli.compose import TOP
from augment.cli.overrides import key_of, parse
from augment.cli.parser import USAGE, Parser, readable_errors, writing
from augment.params import parse_params
from augment.support.errors import UserError, describe_error
from augment.support.own_code import load_plugins
from augment.support.writing import check_folder
from trainer.report.page import write_record
from trainer.report.record import REPORT_FILE, read_record
from trainer.run.config import config_file, load_config

_EXAMPLES = """\
  RUN_FOLDER ...                          write report.html of each folder again
  RUN_FOLDER 'plugins=[my_callbacks]'     of a run with a task or metrics of your own"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser("trainer report", "Write the reports of runs again.", _EXAMPLES, arguments="RUN_FOLDER ...")
    parser.add_trust_flag()
    with readable_errors():
        options, folders, overrides = parser.split_paths(arguments)
        if not folders:
            sys.stdout.write(parser.format_help())
            return USAGE
        plugins = []
        for token in overrides:
            override = parse(token)
            if key_of(override) != "plugins":
                raise UserError(f"{token}: not allowed here. Allowed: folders of runs; their plugins.")
            plugins.append(override.value())
        for folder in folders:
            config_file(folder)
            check_folder(folder)
            plugins += [load_config(folder).get("plugins", [])] if options.trust else []
        for given in plugins:
            load_plugins(parse_params(TOP, {"plugins": given}, "")["plugins"], "plugins")
        for folder in folders:
            with writing(f"{folder / REPORT_FILE}"):
                try:
                    file = write_record(read_record(folder))
                except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                    raise UserError(f"{folder}: its files do not fit together ({describe_error(error)}).") from error
                sys.stdout.write(f"{file}\n")
    return 0
