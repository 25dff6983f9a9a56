"""Export a model for serving."""
