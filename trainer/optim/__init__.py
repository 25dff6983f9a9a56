"""Optimizers, learning rate schedules, and the layers of a network in order."""
