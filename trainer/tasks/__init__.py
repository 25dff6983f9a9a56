"""Tasks: what models predict, with losses, metrics and outputs; one module each, found by the registry."""
