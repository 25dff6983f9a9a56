"""Readers of annotation files and record files, one module per format."""
