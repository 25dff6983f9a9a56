"""Models by name, one module per family."""
