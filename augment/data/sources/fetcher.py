"""Processes that fetch shards while this one trains: in threads, they would hold up the one that feeds the GPU."""

import atexit
import os
import pickle
import select
import subprocess
import sys
from contextlib import suppress
from threading import Event

from augment.data.sources.remote import Shard, get_shard
from augment.support.errors import UserError

_SERVE = "from augment.data.sources.fetcher import serve; serve()"

# Those that wait for work, and all; each ends with this process.
_IDLE: list[subprocess.Popen[bytes]] = []
_ALL: set[subprocess.Popen[bytes]] = set()
_ENDED = Event()  # whether this process ends


def fetch(shard: Shard, stopped: Event) -> None:
    """Fetch a shard into its file in another process, until an event stops that; several threads may call it.

    Raises:
        UserError: it cannot be fetched.
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
            if stopped.is_set() or _ENDED.is_set():
                raise UserError(f"{shard.what}: fetching was stopped.")
        error = pickle.load(process.stdout)
    except BaseException as failure:
        with suppress(OSError), process:  # what is still written to a killed one
            process.kill()
        _ALL.discard(process)
        if isinstance(failure, OSError | EOFError):
            raise UserError(f"{shard.what}: the process that fetched {shard.url} was killed.") from None
        raise
    _IDLE.append(process)
    if error:
        raise UserError(error)


@atexit.register
def _end() -> None:
    _ENDED.set()
    for process in list(_ALL):
        process.kill()
        process.wait()


def _start() -> subprocess.Popen[bytes]:
    if _ENDED.is_set():
        raise UserError("stopped")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C reaches only this process
    )
    _ALL.add(process)
    return process


def serve() -> None:
    """Fetch the shards that come by stdin, and answer with an error, or nothing, until there are no more."""
    while True:
        try:
            shard = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        error = ""
        try:
            get_shard(shard, Event(), lambda _: None)
        except (UserError, OSError) as found:
            error = str(found) if isinstance(found, UserError) else f"{shard.what}: {found}."
        pickle.dump(error, sys.stdout.buffer)
        sys.stdout.buffer.flush()
