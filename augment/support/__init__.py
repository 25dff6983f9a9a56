"""Helpers that every room uses: errors, files, memory, background work, progress bars, text, timing, seeds."""
