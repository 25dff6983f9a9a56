"""`python -m trainer`: train as configured by conf/ and the command line."""

import sys

from augment.memory import imports_are_no_garbage

if __name__ == "__main__":
    with imports_are_no_garbage():
        from trainer.cli import main
    sys.exit(main())
