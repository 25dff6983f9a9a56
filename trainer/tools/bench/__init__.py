"""`python -m trainer bench`: whether training waits for data."""
