"""The transform of validation for servers: as a DALI graph, in PyTorch, and as Python source."""
