"""Training of image models: a readable loop, callbacks, and runs that are described by YAML."""
