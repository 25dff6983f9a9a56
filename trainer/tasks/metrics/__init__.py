"""The metrics of each task; those of every module in this folder are found."""
