"""`python -m trainer`: train, or run the tool that the first argument names."""

import atexit
import gc
import sys

from augment.support.formatting import make_stdout_lenient
from augment.support.signals import exit_on_stop, ignore_stop_signals
from trainer.run import NOTHING_TO_RESUME


def main() -> int:
    """Run the command line and return the exit code."""
    atexit.register(ignore_stop_signals)  # registered first, so it runs last
    exit_on_stop(130, f"{NOTHING_TO_RESUME}\n")
    make_stdout_lenient()
    gc.disable()  # imports create no garbage
    from trainer.cli.main import main as run  # slow, but signals are already handled

    gc.enable()
    code: object = 1
    try:
        return (code := run(sys.argv[1:]))
    except SystemExit as ended:
        code = ended.code
        raise
    finally:
        exit_on_stop(code if isinstance(code, int) else 0)  # until all threads have ended
        gc.freeze()  # otherwise a last collection over all of PyTorch takes a second


if __name__ == "__main__":
    sys.exit(main())
