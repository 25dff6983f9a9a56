"""Command lines: composing a configuration, parsing flags, finding the tools."""
