"""Callbacks, one module each; every module here is found without being listed anywhere."""
