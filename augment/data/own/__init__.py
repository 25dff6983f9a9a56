"""A user's own code as a source: find it by name, prefetch its items, interpret their targets."""
