"""Sweeps over many runs."""
