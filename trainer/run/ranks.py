"""Start several processes that train together. All other ranks follow rank 0."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import uuid4

from augment.cli.parser import INTERRUPTED
from augment.support.errors import UserError, describe_error
from augment.support.process import end_with_parent, launched_ranks
from trainer.loop.callback import Callback
from trainer.loop.ranks import LostRankError, current, join, leave, report, reported
from trainer.run.config.schema import parse_config
from trainer.run.jobs import check_configs

T = TypeVar("T")


def start(count: int, arguments: Sequence[str]) -> int:
    """Start processes with the same arguments, as torchrun does, and return the exit code after all have ended."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in tuple(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the ranks print their own errors
    # Otherwise each process would use all cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    # After a signal, ranks get this many seconds to save. After that, a hanging rank is killed.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "50")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
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
        # Some ranks exit with 1 only because another rank failed.
        return 1 if killed else next((code for code in (2, INTERRUPTED) if code in codes.values()), 1)
    except (SignalException, KeyboardInterrupt):
        return INTERRUPTED
    return 0


def follows() -> bool:
    """Return whether this process is a rank other than 0."""
    if launched_ranks() == 1:
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ:  # ranks must not survive a killed torchrun
        end_with_parent()
    return not join().is_main


def follow(*, leaves: bool = True, callbacks: Sequence[Callback] = ()) -> int:
    """Train the configuration that rank 0 checked and shared, and ignore this rank's own arguments.

    Args:
        leaves: whether the process ends after this call. If not, failures of other ranks are raised.
        callbacks: callbacks in addition to the configured ones.

    Returns:
        The exit code.
    """
    from trainer.run.train import follow as train

    try:
        if (plain := receive()) is None:
            return 0
        config = parse_config(plain)
        logging.disable(logging.WARNING)  # rank 0 logs the same warnings
        try:
            check_configs([config])
        finally:
            logging.disable(logging.NOTSET)
        status = train(config, callbacks)
        if leaves:
            share(None)  # wait for rank 0, which may still be writing, and which would fail if this process ended
            leave()
    except LostRankError:
        if not leaves:
            raise
        return 1  # the rank that failed prints why
    except KeyboardInterrupt:
        if not leaves:
            raise
        return INTERRUPTED  # rank 0 prints how to resume
    except Exception as error:
        first_to_fail = report(message := f"rank {current().rank}: {describe_error(error)}")
        if leaves and not first_to_fail:
            return 1  # another rank prints why
        if isinstance(error, UserError):
            raise UserError(message) from error
        raise
    return INTERRUPTED if status == "interrupted" else 0


def error_to_print(error: Exception) -> Exception:
    """Return the error that this rank prints.

    If another rank failed before rank 0, rank 0 prints only which rank failed, and how to resume.
    """
    if launched_ranks() == 1:
        return error
    if not current().is_main or report(f"rank 0: {error}"):
        return error
    hint = error.hint if isinstance(error, UserError) else ""
    return UserError(f"{reported().partition(':')[0]} failed. Its message states the reason. {hint}".rstrip())


def receive() -> Any:
    """Return, on another rank than 0, the value that rank 0 shares."""
    return share(None)


def share(value: T) -> T:
    """Return rank 0's value in all ranks.

    The first call shares the configuration, or None if nothing is to be trained.
    """
    if launched_ranks() == 1:
        return value
    return join().broadcast(value)
