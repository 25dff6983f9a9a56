"""The private functions of DALI that we use. A test lists the DALI versions that have them."""

from typing import Any

import nvidia.dali.fn
import nvidia.dali.math
import nvidia.dali.types

# DALI's type stubs do not support keyword dictionaries.
fn: Any = nvidia.dali.fn
math: Any = nvidia.dali.math
types: Any = nvidia.dali.types

# DALI's types of stored pixels, by NumPy's names.
STORED = {"uint8": types.UINT8, "uint16": types.UINT16, "int16": types.INT16, "float32": types.FLOAT}

Node = Any  # a DALI DataNode: the package has no types


def split(values: Node, applied: Node) -> tuple[Node, Node]:
    """Return the samples for which `applied` is true, and the other samples.

    DALI implements `if` statements with this operator and `merge`. Both also work outside a traced function.
    """
    taken, passed = fn._conditional.split(values, predicate=applied)
    return taken, passed


def merge(taken: Node, passed: Node, applied: Node) -> Node:
    """Combine the samples that `split` separated."""
    return fn._conditional.merge(taken, passed, predicate=applied)


def drawing_from(state: Node) -> dict[str, Node]:
    """Return the arguments with which an operator draws random numbers from a state, (words,) uint32 per batch."""
    return {"_random_state": state}
