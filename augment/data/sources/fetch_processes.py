"""Processes that fetch shards while this one trains: in threads, they would hold up the one that feeds the GPU."""

import os
import pickle
import select
import subprocess
import sys
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from time import sleep

from augment.data.sources.remote import Shard, get_shard
from augment.support.errors import UserError, describe_error
from augment.support.files import remove_parts

_SERVE = "from augment.data.sources.fetch_processes import serve; serve()"

_IDLE: list[subprocess.Popen[bytes]] = []  # wait for work


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
            if stopped.is_set():
                raise UserError(f"{shard.what}: fetching was stopped.")
        error = pickle.load(process.stdout)
    except BaseException as failure:
        with suppress(OSError), process:  # what is still written to a killed one
            process.kill()
        remove_parts(shard.file.parent)
        if isinstance(failure, OSError | EOFError):
            raise UserError(f"{shard.what}: the process that fetched {shard.url} was killed.") from None
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
        start_new_session=True,  # so that Ctrl-C reaches only this process
    )


def serve() -> None:
    """Fetch the shards that come by stdin, and answer each with an error, or nothing; then end the process."""
    asked, ended = SimpleQueue[Shard | None](), Event()
    Thread(target=_receive, args=(asked, ended), daemon=True).start()

    def show(value: int) -> None:
        if ended.is_set():
            raise UserError("stopped")

    while (shard := asked.get()) is not None:
        error = ""
        try:
            get_shard(shard, show)
        except Exception as found:
            error = str(found) if isinstance(found, UserError) else f"{shard.what}: {describe_error(found)}."
        with suppress(BrokenPipeError):  # of a process that has ended
            pickle.dump(error, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    os._exit(0)  # packages would complain about open connections


def _receive(asked: SimpleQueue[Shard | None], ended: Event) -> None:
    """Pass shards on until the process that asks has ended, however it did; then end this one soon."""
    try:
        while True:
            asked.put(pickle.load(sys.stdin.buffer))
    finally:
        ended.set()
        asked.put(None)
        sleep(1)  # in which the part of a shard is removed, unless the store is silent
        os._exit(0)
