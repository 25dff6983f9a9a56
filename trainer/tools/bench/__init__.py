"""`python -m trainer bench`: measure whether training waits for data."""
