"""`python -m trainer`: train as configured, or run the tool that the first argument names."""

import atexit
import sys

from augment.support.memory import freeze_imports
from augment.support.process import run_and_leave
from augment.support.signals import exit_on_stop, hide_discarded_interrupts, ignore_stop_signals
from augment.support.text import keep_names
from trainer.run import NOTHING_TO_RESUME


def main() -> int:
    """Run the command line; return the exit code."""
    atexit.register(ignore_stop_signals)  # registered first, it runs last
    exit_on_stop(130, f"{NOTHING_TO_RESUME}\n")
    hide_discarded_interrupts()
    keep_names()
    with freeze_imports():
        from trainer.cli.main import main as run
    code: object = 1
    try:
        return (code := run(sys.argv[1:]))
    except SystemExit as ended:
        code = ended.code
        raise
    finally:
        # After a KeyboardInterrupt that passed through exec, as that of dataclasses, Python would end by SIGINT; this
        # resets it.
        exec("")
        exit_on_stop(code if isinstance(code, int) else 0)  # while threads end


if __name__ == "__main__":
    run_and_leave(main)
