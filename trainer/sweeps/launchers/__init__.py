"""Launchers: how many jobs of a sweep run at a time, and where."""
