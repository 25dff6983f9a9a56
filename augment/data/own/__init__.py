"""Images and targets from the user's own Python objects, for `data=own`."""
