"""`python -m augment preview`: figures of what steps and recipes do."""
