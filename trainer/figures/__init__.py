"""Figures of a run: curves, batches, confusion matrices, outputs."""

import logging

# Matplotlib warns of its font cache, for one, in the middle of the table of epochs; errors are raised anyway.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
