"""The command line: compose a configuration from overrides, parse flags, print help, and find the tools."""
