"""Figures of a run: batches, confusion matrices, predictions, and images for pages."""

import logging

# Matplotlib's warnings, for example about its font cache, would interrupt the table of epochs. Errors are still raised.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
