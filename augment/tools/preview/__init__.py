"""The preview tool: draw what a recipe does, step by step and as a whole, or what ops do."""
