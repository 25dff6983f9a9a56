"""The tools of `python -m trainer`, a module or package for each."""
