"""`python -m augment.bench`."""

import sys

from augment.bench.run import main

if __name__ == "__main__":
    sys.exit(main())
