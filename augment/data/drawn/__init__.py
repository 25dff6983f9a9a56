"""Image sets that the project draws itself: nothing to download."""
