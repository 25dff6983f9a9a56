"""Explain failures that users can fix: problems with the run's folder, with memory or with a setting."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from augment.support.errors import UserError, first_line
from augment.support.files import shown
from augment.support.formatting import amount
from augment.support.lazy_torch import torch
from augment.support.process import host_memory
from augment.support.user_code import OwnCodeError, describe_own
from trainer.run.config.schema import Config

# Write errors, such as a full disk, for which Python does not name the file.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)

# Most libraries report a lack of memory as a RuntimeError with one of these texts.
_OUT_OF_MEMORY = ("out of memory", "cudaErrorMemoryAllocation", "ALLOC_FAILED", "Can't allocate")
_OUT_OF_HOST_MEMORY = ("DefaultCPUAllocator", "bad_alloc")  # a lack of memory on the CPU

# A part of PyTorch's message about a batch of one image.
_SINGLE_IMAGE = "Expected more than 1 value per channel"


def explain(
    error: BaseException, config: Config, folder: Path, *, training: bool = True, fits: int = 0
) -> UserError | None:
    """Return an error that states what the user can do about a failure, or None for other kinds of failure.

    `fits` is a batch size that would fit on the GPU, or 0 if unknown.
    """
    if isinstance(error, OSError):
        return folder_error(error, folder)
    if line := out_of_memory(error):
        on_host = isinstance(error, MemoryError) or any(text in line for text in _OUT_OF_HOST_MEMORY)
        return _too_large(line, config, training=training, on_host=on_host, fits=fits)
    if _SINGLE_IMAGE in str(error):
        return UserError(
            "A training batch is a single image, and the model's batch norm needs at least two. Change fit.batch_size, "
            "or set fit.drop_last=true, which leaves out the last samples of each shuffled epoch."
        )
    if config.fit.deterministic and "deterministic" in str(error):
        return UserError(
            f"fit.deterministic=true: {first_line(error)} Set it to false, or use a model or loss without that "
            "operation."
        )
    if isinstance(error, Exception) and not isinstance(error, UserError) and (own := describe_own(error)):
        return OwnCodeError(own)
    return None


@contextmanager
def explained(config: Config, *, training: bool = True) -> Iterator[None]:
    """Replace failures of a pass with errors that state what the user can do, see `explain`."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if (known := explain(error, config, Path(), training=training)) is None:
            raise
        raise known from error


def folder_error(error: OSError, folder: Path) -> UserError | None:
    """Return an error with a remedy if `error` came from writing to the run's folder, otherwise None."""
    name = shown(folder)
    if error.errno == errno.ENOENT and (not folder.is_dir() or error.filename == str(folder)):
        return UserError(f"{name}: the run's folder was deleted during the run. Start the run again.")
    named = error.filename is not None and Path(str(error.filename)).resolve().is_relative_to(folder.resolve())
    if not named and not (error.filename is None and error.errno in _WRITE_ERRORS):
        return None
    return UserError(
        f"{name}: the run cannot write to its folder: {error.strerror}. Free disk space, or use another folder."
    )


def out_of_memory(error: BaseException) -> str:
    """Return the line of an error that reports a lack of memory, or an empty string for other errors."""
    if not isinstance(error, RuntimeError | MemoryError):
        return ""
    for line in str(error).splitlines():  # DALI's messages begin with pages of context
        if any(text in line for text in (*_OUT_OF_MEMORY, *_OUT_OF_HOST_MEMORY)):
            return line.strip()
    return first_line(error) if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) else ""


def _too_large(line: str, config: Config, *, training: bool, on_host: bool, fits: int) -> UserError:
    """Return an error that states what did not fit, and which settings to reduce. `line` is the library's message."""
    fit, device = config.fit, config.fit.torch_device()
    if on_host or device.type == "cpu":
        where, other = f"the host ({host_memory() / 2**30:.0f} GiB)", "a machine with more memory"
    else:
        gpu = torch.cuda.get_device_properties(device)
        where, other = f"the GPU ({gpu.name}, {gpu.total_memory / 2**30:.0f} GiB)", "a GPU that nothing else uses"
    lower = ["a smaller fit.batch_size"]
    if training:
        smaller = f"fit.batch_size={fits} (it fits)" if fits else "a smaller fit.batch_size"
        lower = [f"{smaller} with a larger fit.accumulate", "a smaller aug.size", "a smaller model"]
    elif device.type != "cpu":
        lower.append("fit.device=cpu")
    lower += [] if fit.half else ["fit.precision=bf16"]
    sizes = fit.batches(config.aug.size) if training else [("", fit.images, config.aug.size)]
    batches = " and ".join(f"batches of {amount(n, 'image')} at {size} px" for _, n, size in sizes)
    return UserError(
        f"out of memory on {where} with {config.model_name}, {batches}, fit.precision={fit.precision}: "
        f"{line.rstrip('.')}. Try {', '.join(lower)}, or {other}."
    )
