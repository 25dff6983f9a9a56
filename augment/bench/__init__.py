"""The benchmark, `python -m augment.bench`. Nothing is imported here: worker processes import one module of it only."""
