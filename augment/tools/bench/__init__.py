"""The bench tool. Nothing is imported here: worker processes import a single module of it."""
