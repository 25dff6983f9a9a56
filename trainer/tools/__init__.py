"""The tools of `python -m trainer`: each module or package here is one."""
