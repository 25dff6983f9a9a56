"""Figures of a run: curves, batches, confusion matrices, outputs."""
