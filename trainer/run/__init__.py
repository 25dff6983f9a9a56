"""One run: from a configuration to a trained model in a folder."""

# After Ctrl-C before there is a run, mostly while packages are imported or the data are listed.
NOTHING_TO_RESUME = "stopped before the first batch; nothing to resume"
