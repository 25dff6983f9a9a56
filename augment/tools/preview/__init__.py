"""`python -m augment preview`: figures of the effects of steps and recipes."""
