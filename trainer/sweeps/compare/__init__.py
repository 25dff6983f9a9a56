"""The tool that compares runs."""
