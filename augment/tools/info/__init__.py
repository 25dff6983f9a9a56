"""`python -m augment info`: statistics and likely problems of a dataset."""
