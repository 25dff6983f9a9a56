"""The export tool: write the validation transform for serving."""
