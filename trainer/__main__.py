"""`python -m trainer`: train as configured by conf/ and the command line."""

import gc
import sys

if __name__ == "__main__":
    # What is imported stays: to look through it for garbage, again and again, costs a tenth of the start.
    gc.disable()
    from trainer.cli import main

    gc.enable()
    sys.exit(main())
