"""The tools of `python -m augment`: each module or package here is one."""
