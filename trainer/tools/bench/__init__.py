"""The benchmark of training."""
