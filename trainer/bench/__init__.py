"""The benchmark of training, `python -m trainer.bench`."""
