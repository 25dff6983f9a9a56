"""`python -m augment TOOL`: plan, preview, measure and export recipes, inspect and convert datasets."""

import sys

from augment.support.formatting import make_stdout_lenient
from augment.support.signals import StopSignals


def main() -> int:
    """Run the tool that the command line names, and return the exit code."""
    with StopSignals() as signals:
        with signals.ending(130):
            from augment.cli.tools import run_tool
        make_stdout_lenient()
        return run_tool(__package__, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
