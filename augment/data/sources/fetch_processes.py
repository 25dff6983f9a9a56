"""Processes that download shards during training.

Threads of the training process would delay the thread that feeds the GPU.
"""

import os
import pickle
import select
import subprocess
import sys
from contextlib import suppress
from threading import Event

from augment.data.sources.remote import Shard, get_shard
from augment.support.errors import UserError, describe_error
from augment.support.files import remove_parts

_SERVE = "from augment.data.sources.fetch_processes import serve; serve()"

_IDLE: list[subprocess.Popen[bytes]] = []  # idle processes


def fetch(shard: Shard, stopped: Event) -> None:
    """Download a shard into its file in another process, until `stopped` is set. Several threads may call this.

    Raises:
        UserError: the shard cannot be downloaded.
    """
    try:
        process = _IDLE.pop()
    except IndexError:
        process = _start()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(pickle.dumps(shard))
        process.stdin.flush()
        while not select.select([process.stdout], [], [], 0.2)[0]:
            if stopped.is_set():
                raise UserError(f"{shard.what}: the download was stopped.")
        error = pickle.load(process.stdout)
    except BaseException as failure:
        with suppress(OSError), process:  # closing a killed process's stdin may fail
            process.kill()
        remove_parts(shard.path.parent)
        if isinstance(failure, OSError | EOFError):
            raise UserError(f"{shard.what}: the process that downloaded {shard.url} was killed.") from None
        raise
    _IDLE.append(process)
    if error:
        raise UserError(error)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C then reaches only the training process
    )


def serve() -> None:
    """Download the shards that arrive on stdin, and answer each with an error or an empty text on stdout.

    The process ends soon after the training process has ended or was killed.
    """
    parent = os.getppid()

    def check_parent(_: int) -> None:
        if os.getppid() != parent:
            raise UserError("stopped")

    with suppress(EOFError, BrokenPipeError):
        while True:
            shard: Shard = pickle.load(sys.stdin.buffer)
            error = ""
            try:
                get_shard(shard, check_parent)
            except Exception as found:
                error = str(found) if isinstance(found, UserError) else f"{shard.what}: {describe_error(found)}."
            pickle.dump(error, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    os._exit(0)  # a regular exit prints warnings about open connections
