"""Pictures of what a recipe does, step by step and as a whole, or of what ops do."""
