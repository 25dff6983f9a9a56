"""Optimizers, learning rate schedules, and the order of a network's layers."""
