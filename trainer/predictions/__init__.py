"""Predictions of a trained model: from paths or arrays to classes, masks, boxes and files."""
