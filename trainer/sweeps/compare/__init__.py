"""`python -m trainer compare`: compare settings across runs and sweeps."""
