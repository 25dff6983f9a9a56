"""Several processes that train together: start them, and follow rank 0 in all others."""

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from augment.cli.parser import INTERRUPTED
from augment.support.errors import UserError, describe_error
from augment.support.process import end_with_parent, launched
from trainer.loop.ranks import LostRankError, current, join, leave, report, reported
from trainer.run.config.schema import parse_config
from trainer.run.jobs import check_configs

T = TypeVar("T")


def start(count: int, arguments: Sequence[str]) -> int:
    """Start processes with the same arguments, as torchrun does; return the exit code once all have ended."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in tuple(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the ranks say themselves what went wrong
    # Otherwise each would use all cores, for PyTorch's work on the CPU.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    # For saving after a signal; a rank that hangs is killed then.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "50")
    config = LaunchConfig(
        *(1, 1, count),
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        local_addr="localhost",
    )
    try:
        elastic_launch(config, sys.executable)("-m", "trainer", *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        killed = {rank: signal.Signals(-code).name for rank, code in codes.items() if code < 0}
        for rank, name in killed.items():
            sys.stderr.write(f"rank {rank}: ended by {name}\n")
        # Of several, some only lost the one that failed.
        return 1 if killed else next((code for code in (2, INTERRUPTED) if code in codes.values()), 1)
    except (SignalException, KeyboardInterrupt):
        return INTERRUPTED
    return 0


def follows() -> bool:
    """Return whether this process is one of several that were started together, and not the first."""
    if launched() == 1:
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ:  # ranks whose torchrun was killed would train on, unseen
        end_with_parent()
    return not join().is_main


def follow(*, leaves: bool = True) -> int:
    """In a rank other than the first: train what rank 0 checked and shared, whatever this one was given.

    Args:
        leaves: whether the process ends now, and so leaves the other ranks; otherwise errors of others are raised, too.

    Returns:
        The exit code.
    """
    from trainer.run.train import follow as train

    nothing: Mapping[str, Any] | None = None
    try:
        if (plain := share(nothing)) is None:
            return 0
        config = parse_config(plain)
        logging.disable(logging.WARNING)  # rank 0 has logged it
        try:
            check_configs([config])
        finally:
            logging.disable(logging.NOTSET)
        status = train(config)
        if leaves:
            share(None)  # rank 0 may still be writing, which the end of this process would cut short
            leave()
    except LostRankError:
        if not leaves:
            raise
        return 1  # the one that failed says why
    except KeyboardInterrupt:
        if not leaves:
            raise
        return INTERRUPTED  # rank 0 says what there is to resume
    except Exception as error:
        mistake = isinstance(error, UserError)
        first_to_fail = report(message := f"rank {current().rank}: {error if mistake else describe_error(error)}")
        if leaves and not first_to_fail:
            return 1  # another one says why
        if mistake:
            raise UserError(message) from error
        raise
    return INTERRUPTED if status == "interrupted" else 0


def once(error: Exception) -> Exception:
    """Return what rank 0 prints of an error: where another rank has printed the cause, only how to resume."""
    if launched() == 1:
        return error
    if not current().is_main or report(f"rank 0: {error}"):
        return error
    hint = error.hint if isinstance(error, UserError) else ""
    return UserError(f"{reported().partition(':')[0]} failed; its message says why. {hint}".rstrip())


def share(value: T) -> T:
    """Return the value of rank 0; all ranks call it, first with the configuration to train, None for nothing."""
    if launched() == 1:
        return value
    return join().broadcast(value)
