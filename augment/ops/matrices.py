"""Matrices of many samples at once."""

from typing import Any

import numpy as np

from augment.registry import Array


def stack(*rows: tuple[Any, ...]) -> Array:
    """Stack rows of scalars and (N,) arrays into (N, R, C), or into (R, C) if all are scalars."""
    entries = np.broadcast_arrays(*[entry for row in rows for entry in row])
    return np.stack(entries, axis=-1).reshape(*entries[0].shape, len(rows), -1).astype(np.float64)
