"""Callbacks and experiment trackers, one module each."""
