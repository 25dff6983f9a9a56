"""A program for several ranks: on stdin, a JSON line for each fit, with its overrides and its folder."""

import json
import sys

from trainer import train
from trainer.loop import ranks

ranks.EVERY = 1

for line in sys.stdin:
    given = json.loads(line)
    train(*given["overrides"], folder=given["folder"])
ranks.leave()
