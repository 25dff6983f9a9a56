"""What is used of DALI without a public name; a test names the versions in which it was found."""

from typing import Any

import nvidia.dali.fn
import nvidia.dali.math
import nvidia.dali.types

# DALI's stubs know no keyword dictionaries.
fn: Any = nvidia.dali.fn
math: Any = nvidia.dali.math
types: Any = nvidia.dali.types

Node = Any  # a DALI DataNode: the package has no types


def split(values: Node, applied: Node) -> tuple[Node, Node]:
    """Return the samples for which `applied` is true, and the others.

    DALI's own `if` is made of this operator and of `merge`; they work outside of a traced function, too.
    """
    taken, passed = fn._conditional.split(values, predicate=applied)
    return taken, passed


def merge(taken: Node, passed: Node, applied: Node) -> Node:
    """Put samples together that `split` has separated."""
    return fn._conditional.merge(taken, passed, predicate=applied)


def drawing_from(state: Node) -> dict[str, Node]:
    """Return what makes an operator draw from a state that it is given for each batch, (words,) uint32."""
    return {"_random_state": state}
