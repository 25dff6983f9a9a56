"""The tools of `python -m trainer`, one module or package each."""
