"""`python -m trainer dashboard`: all runs and sweeps of a folder on one page."""
