"""The training loop: the Learner, its events, the work of a batch, checkpoints and ranks."""
