"""One run: from a configuration to a trained model in a folder."""

# Printed if Ctrl-C comes before a run starts, usually while packages are imported or images are listed.
NOTHING_TO_RESUME = "stopped before the first batch, so there is nothing to resume"
