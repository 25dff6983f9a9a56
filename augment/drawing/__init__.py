"""The style of figures, bar charts, and text that fits its space."""
