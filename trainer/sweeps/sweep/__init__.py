"""`python -m trainer -m` and `python -m trainer sweep`: start, resume and show sweeps."""
