"""Where pixels move: motion of points and masks, crop windows, remaps, and mixed samples."""
