"""The validation transform, written out for serving."""
