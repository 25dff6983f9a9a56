"""Datasets: sources, file formats, targets, checks before training, splits and conversion."""
