"""One run: from a configuration to a trained model in a folder."""

# Printed after Ctrl-C before a run began, usually while packages are imported or data are listed.
NOTHING_TO_RESUME = "stopped before the first batch, so there is nothing to resume"
