"""Geometry of batches: crop windows, motion of targets, remaps and mixed samples."""
