"""A program for several ranks: on stdin, a JSON line for each fit, with its overrides and its folder.

The fits in the folders "wrong" and "different" are mistakes, and printed as such.
"""

import json
import sys

import pytest

from augment.support.errors import UserError
from trainer import train
from trainer.loop import ranks

ranks.EVERY = 1

for line in sys.stdin:
    given = json.loads(line)
    if given["folder"] in ("wrong", "different"):
        with pytest.raises(UserError) as caught:
            train(*given["overrides"], folder=given["folder"])
        sys.stdout.write(f"{caught.value}\n")
    else:
        train(*given["overrides"], folder=given["folder"])
ranks.leave()
