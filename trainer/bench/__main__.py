"""`python -m trainer.bench`."""

import sys

from augment.memory import imports_are_no_garbage

if __name__ == "__main__":
    with imports_are_no_garbage():
        from trainer.bench.run import main
    sys.exit(main())
