"""Data sets: where images and their targets come from, and which of them are used."""
