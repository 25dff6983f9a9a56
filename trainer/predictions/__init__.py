"""Predict with a trained model, and write predictions and masks to files."""
