"""Kinds of targets, one module each: classes, labels, numbers, masks, boxes and keypoints."""
