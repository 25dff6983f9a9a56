"""The stress test: score a trained model on images with one corruption at a time."""
