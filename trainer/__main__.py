"""`python -m trainer`: train as configured by conf/ and the command line."""

import sys

from augment.memory import imports_are_no_garbage

if __name__ == "__main__":
    try:
        with imports_are_no_garbage():
            from trainer.cli import main
    except KeyboardInterrupt:  # as `main` has it
        sys.stdout.write("stopped before the first batch; nothing to go on with\n")
        sys.exit(130)
    sys.exit(main())
