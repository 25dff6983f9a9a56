"""`python -m augment TOOL`: plan, preview, measure and export recipes, inspect and convert data sets."""

import sys

from augment.cli.tools import run_tool
from augment.support.process import run_and_leave
from augment.support.text import keep_names


def main() -> int:
    """Run the tool that the command line names; return the exit code."""
    keep_names()
    return run_tool(__package__, sys.argv[1:])


if __name__ == "__main__":
    run_and_leave(main)
