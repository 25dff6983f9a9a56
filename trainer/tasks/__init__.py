"""What differs between tasks: targets, losses, metrics, and what a task shows."""
