"""The tools of `python -m augment`, one module or package each."""
