"""DALI pipelines and the loader."""
