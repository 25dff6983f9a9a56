"""The learning rate range test."""
