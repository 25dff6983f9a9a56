"""The private functions of DALI that we use. A test lists the DALI versions that have them."""

from typing import Any

import nvidia.dali.fn
import nvidia.dali.math
import nvidia.dali.types

# DALI's type stubs do not support keyword dictionaries.
fn: Any = nvidia.dali.fn
math: Any = nvidia.dali.math
types: Any = nvidia.dali.types

# Maps NumPy's names of pixel types to DALI's types.
STORED_TYPES = {"uint8": types.UINT8, "uint16": types.UINT16, "int16": types.INT16, "float32": types.FLOAT}

Node = Any  # DALI's DataNode, which has no type annotations


def split(values: Node, applied: Node) -> tuple[Node, Node]:
    """Return the samples for which `applied` is true, and the other samples.

    DALI implements `if` statements with this operator and `merge`. Both also work outside a traced function.
    """
    taken, passed = fn._conditional.split(values, predicate=applied)
    return taken, passed


def merge(taken: Node, passed: Node, applied: Node) -> Node:
    """Combine the samples that `split` separated."""
    return fn._conditional.merge(taken, passed, predicate=applied)


def random_state_argument(state: Node) -> dict[str, Node]:
    """Return the argument that makes an operator draw from a random state, which is one uint32 vector per batch."""
    return {"_random_state": state}
