"""Share out images between splits in groups: frames of a video or images of a patient are on one side of a cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augment.data.dataset import ImageRef
from augment.data.images import portable_names
from augment.support.errors import UserError


def is_pattern(group: str) -> bool:
    """Return whether a value of data.group is a pattern of names, not a column."""
    return "(" in group or "\\" in group


def groups_by_name(images: Sequence[ImageRef], pattern: str) -> list[str]:
    """Return what the only group of a regular expression is in each image's folder and file name.

    Raises:
        UserError: it is no such expression, or not found in a name.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.group={pattern}: {error}. Allowed: a regular expression, or a column.") from None
    if compiled.groups != 1:
        raise UserError(f"data.group={pattern}: has {compiled.groups} groups in ( ). Allowed: one.")
    names = list(portable_names(images))
    found = [match[1] if (match := compiled.search(name)) else None for name in names]
    if missing := [name for name, group in zip(names, found, strict=True) if group is None]:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise UserError(f"data.group={pattern}: is not found in {missing[0]}{more}. Allowed: what all names have.")
    return [str(group) for group in found]


def joined(copies: Sequence[Any], groups: Sequence[Any]) -> NDArray[np.int64]:
    """Return numbers of the smallest groups, (N,), such that images with an equal copy or group are in the same."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers = [numbered(values) for values in (copies, groups)]
    size = len(numbers[0]) + len(numbers[1])
    links = coo_array((np.ones(len(copies)), (numbers[0], len(copies) + numbers[1])), shape=(size, size))
    found: NDArray[np.int64] = connected_components(links, directed=False)[1][numbers[0]]
    return np.unique(found, return_inverse=True)[1]


def share_out(
    groups: NDArray[np.int64], strata: NDArray[np.int64], shares: Sequence[float], draw: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the part that each image belongs to, (N,): whole groups, about the shares of all images and each stratum.

    The largest group comes first, and each goes to the part to which it adds the least excess, in squares, as
    scikit-learn's GroupKFold does where there is one stratum.

    Args:
        groups: (N,) numbers of the groups, from 0.
        strata: (N,) numbers of the strata, from 0.
        shares: those of the parts, which add up to 1.
        draw: (G,) numbers in [0, 1), by which groups of equal size are ordered.
    """
    totals = np.append(np.bincount(strata), len(strata)).astype(float)
    filled, part = np.zeros((len(shares), len(totals))), np.empty(len(draw), np.int64)
    # A row for each stratum of each group, and one for all images of the group, which is the last of its group.
    columns, everything = len(totals), np.full_like(strata, len(totals) - 1)
    rows, numbers = np.unique(np.tile(groups, 2) * columns + np.append(strata, everything), return_counts=True)
    begins = np.searchsorted(rows, np.arange(len(draw) + 1) * columns).tolist()
    strata_of = rows % columns
    for number in np.lexsort((draw, -np.bincount(groups))).tolist():
        own = slice(begins[number], begins[number + 1])
        kinds, counts = strata_of[own], numbers[own]
        excess = ((2 * filled[:, kinds] + counts) * counts / totals[kinds]).sum(axis=1) / shares
        part[number] = excess.argmin()
        filled[part[number], kinds] += counts
    return part[groups]


def numbered(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return the number of each value, (N,), in the order in which they come first."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.fromiter((numbers[value] for value in values), np.int64, len(values))
