"""The splits of a data set as training would have them."""

from dataclasses import replace

import numpy as np

from augment.data.copies import group_copies
from augment.data.dataset import Dataset
from augment.data.selection import cut_val
from augment.data.sources.registry import Source
from augment.support.errors import UserError
from augment.tools.info.scan import Scan


def as_trained(source: Source, data: Dataset, scan: Scan) -> tuple[Dataset, Scan]:
    """Cut val from train if the source says so, with copies on one side.

    Args:
        source: the source.
        data: its images; if they are too few to be cut, this becomes a problem.
        scan: the result of scanning them, train first.

    Returns:
        The images, and the scan in their order.
    """
    if not source.cuts_val:
        return data, scan
    images = data.train.files + data.val.files
    good, digests_of = (scan.facts[name].tolist() for name in ("good", "digest"))
    digests = {images[index]: f"{digest:x}" for index, digest in enumerate(digests_of) if good[index]}
    try:
        cut = cut_val(source, replace(data, copies=group_copies(images, digests)))
    except UserError as error:
        return replace(data, problems=(*data.problems, str(error))), scan
    indices = {image: index for index, image in reversed(list(enumerate(images)))}
    order = [indices[image] for image in cut.train.files + cut.val.files]
    faults = {new: scan.faults[old] for new, old in enumerate(order) if old in scan.faults}
    return cut, Scan(scan.facts[np.array(order)], faults)
