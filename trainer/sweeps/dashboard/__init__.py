"""The dashboard: all runs and sweeps of a folder in one HTML file."""
