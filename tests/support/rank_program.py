"""A program for several ranks: on stdin, a JSON line for each fit, with its overrides and its folder.

The fit in the folder "wrong" is a mistake.
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
    if given["folder"] == "wrong":
        with pytest.raises(UserError):
            train(*given["overrides"])
    else:
        train(*given["overrides"], folder=given["folder"])
ranks.leave()
