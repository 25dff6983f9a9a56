"""One run: from a configuration to a trained model in a folder."""
