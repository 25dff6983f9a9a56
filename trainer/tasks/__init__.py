"""Tasks with their losses, metrics and reports."""
