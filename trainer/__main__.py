"""`python -m trainer`: train as configured by conf/ and the command line."""

import sys

from trainer.cli import main

if __name__ == "__main__":
    sys.exit(main())
