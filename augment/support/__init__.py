"""Helpers without knowledge of images: errors, files, untrusted input, threads, signals and formatting."""
