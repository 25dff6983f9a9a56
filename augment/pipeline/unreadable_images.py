"""Errors that name the images that become unreadable during a run."""

import re
from collections.abc import Sequence

from augment.data.check import check_files
from augment.data.images import ImageRef, name_of
from augment.support.errors import UserError
from augment.support.formatting import list_some
from augment.support.user_code import reject_in_op

# A run resumes only with the same training images.
_REMEDY = "Repair it to resume the run. To start a new run without it, remove it or set data.skip_bad=true."


def unreadable_error(image: ImageRef, error: OSError | UserError) -> UserError:
    """Return the error about an image that cannot be read, or whose target cannot be read.

    Args:
        image: the image.
        error: the cause, a system error or an error in a user's own code.
    """
    text = str(error).rstrip(".")
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        text = f"data: {name_of(image)} cannot be read any more: {error.strerror or error}{where}"
    return UserError(f"{text}. {_REMEDY}")


def reject_unreadable(error: RuntimeError, images: Sequence[ImageRef]) -> None:
    """Find the cause of a pipeline's error.

    Raises:
        UserError: an image is unreadable. The message names it.
        OwnCodeError: the error comes from a user's op.
    """
    reject_in_op(error)
    text = str(error)
    is_of_images = re.search(r"fn\.(readers\.file|io\.file|peek_image_shape|decoders\.)", text)
    is_of_memory = re.search(r"out of memory|bad_alloc|\bCUDA\b", text)
    # DALI's message names the operator, but rarely the file, so check all images.
    faults = check_files(images) if is_of_images and not is_of_memory else {}
    if faults:
        shown = list_some((f"{name_of(image)} {fault}" for image, fault in faults.items()), separator="; ")
        raise UserError(f"data: an image became unreadable: {shown}. {_REMEDY}") from error
