"""A user's own code as a source: found by its name, its items read ahead of their use, its targets understood."""
