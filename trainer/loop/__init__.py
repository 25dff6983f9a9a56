"""The training loop: Learner, events, checkpoints, CUDA graphs, optimizer steps, progressive resizing."""
