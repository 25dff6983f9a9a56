"""Download shards from object stores and web servers into a folder.

`fetch_shards` downloads all shards before training starts. `list_files` only lists shards. Another process (`serve`)
downloads a shard when it is opened. Closed shards may be removed to make room for others.

The modification time of a downloaded shard encodes its ETag. One rename therefore marks the shard as complete and
records its version. Caches of local files, such as indexes, notice a new version in the usual way.
"""

import asyncio
import fcntl
import os
import pickle
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic, sleep, time_ns
from typing import Any, ClassVar

from augment.data.formats.records import GLOB, RecordFile, close_files, expand_braces
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError, describe_error, first_line, missing_package, suggest
from augment.support.expansion import expanded_values
from augment.support.files import atomic_path, digest, remove_parts
from augment.support.formatting import amount
from augment.support.untrusted_files import locked

# The package for each kind of store, and the names that stores give to an object's version.
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
_VERSIONS = ("ETag", "etag", "blob_id", "Last-Modified", "LastModified", "updated")

_MAX_REQUESTS = 8  # maximum number of simultaneous requests or downloads
_RETRY_PAUSES_S = (0.5, 2.0, 8.0)  # seconds between attempts
_SILENCE_S = 30  # maximum seconds with less than `_MIN_RATE`
_MIN_RATE = 1000  # bytes per second
_LISTING_S = 600  # maximum seconds to list a bucket
_PATIENCE_S = 5  # seconds to wait until other readers close files, such as the readers of a pass that has ended
_MARGIN = 2**30  # bytes that stay free on the disk

# Folders below data.dir: for shards that are kept, and for shards that may be removed to make room.
KEPT, WINDOW = "remote", "window"

# Errors that are not retried: a pattern in their text, and the message for the user.
_PERMANENT = {
    r"credential|\b401\b": "credentials are missing or invalid. For S3, set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public bucket. For Google Cloud, run `gcloud auth "
    "application-default login`. For Hugging Face, set HF_TOKEN.",
    r"\b403\b|forbidden|PermissionError: (?!\[)": "access is forbidden. Use credentials that may read it.",
    r"\b(404|410)\b|FileNotFoundError|NoSuch": "the object does not exist. Check the URL.",
    r"Errno (28|122)\b": "the disk is full. Set data.dir to a folder on a larger disk.",
}


@dataclass(frozen=True)
class RemoteFile(RecordFile):
    """A remote object, and the file that it is downloaded to when it is opened. It stays on the disk while it is open.

    Each file has its own folder.
    """

    url: str
    what: str  # the setting that names it, for messages
    store: Any = field(compare=False)  # fsspec's file system
    most_gb: float | None = field(compare=False)  # see `fetch_shards`

    stays: ClassVar[bool] = False

    def open(self, stopped: Event | None = None) -> int:
        """Return a descriptor that reads the shard. Download a missing shard first. Setting `stopped` stops this.

        Raises:
            UserError: the shard cannot be downloaded, or the disk has no room for it.
        """
        try:
            while True:
                self._fetch(stopped or Event())
                with suppress(FileNotFoundError):  # another process removed it to make room
                    descriptor = super().open()
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # closing the descriptor releases the lock
                    os.utime(descriptor, ns=(time_ns(), self.mtime_ns))
                    return descriptor
        except OSError as error:
            raise UserError(f"{self.what}: {self.path}: {error.strerror or error}.") from None

    def _fetch(self, stopped: Event) -> None:
        folder = self.path.parent.parent
        if not self.is_here:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f".{self.path.parent.name}{self.path.suffix}.lock"):
                if not self.is_here:
                    _reserve(self, folder)
                    try:
                        fetch_in_process(self, stopped)
                    finally:
                        _DOWNLOADING.remove(self)


def is_url(pattern: str) -> bool:
    """Whether a setting names remote data, such as "s3://bucket/train-{000..009}.tar"."""
    return bool(re.match(r"\w[\w+.-]*://", pattern))


def fetch_shards(given: Mapping[str, str], folder: Path, most_gb: float | None) -> dict[str, list[Path]]:
    """Download the missing and changed shards that URLs name, and return the files of all shards by key.

    Processes that share the folder wait for each other.

    Args:
        given: URLs by their keys, such as "data.train". They may contain {000..009} and {a,b}. URLs of stores that can
            list objects may also contain * ? [ ].
        folder: the folder of the files.
        most_gb: maximum disk space of the files, in 10^9 bytes. Default: the free disk space minus 1 GiB.

    Raises:
        UserError: a package, credentials, an object or room for it is missing, or a download fails.
    """
    listed = {key: list_shards(f"{key}={url}", url, folder, most_gb) for key, url in given.items()}
    shards = {shard.path: shard for some in listed.values() for shard in some}
    try:
        if not all(shard.is_here for shard in shards.values()):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / ".lock"):  # removing the lock file afterwards would cause a race
                _fetch_all([shard for shard in shards.values() if not shard.is_here], folder, most_gb)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}. Shards cannot be downloaded into {folder}."
        ) from None
    return {key: [shard.path for shard in some] for key, some in listed.items()}


def _file_of(url: str, folder: Path) -> Path:
    name = url.partition("?")[0].rpartition("/")[2]
    fits = name.strip(".") and name.isprintable() and len(name.encode()) < 200  # a server may list any names
    return folder / digest(url) / (name if fits else "shard")


def list_shards(what: str, pattern: str, folder: Path, most_gb: float | None) -> list[RemoteFile]:
    """Return the shards that a URL names. `what` is the setting and its value, for messages.

    Raises:
        UserError: a package, credentials or an object is missing.
    """
    store = _store(what, pattern.partition("://")[0])

    def find(url: str) -> list[RemoteFile]:
        if url.startswith("http") or not GLOB.search(url):
            info = _with_retries(lambda: _call(store, "info", url), what, url)
            return [_shard(store, what, folder, most_gb, url, info)]
        found = _with_retries(lambda: _call(store, "glob", url, limit_s=_LISTING_S, detail=True), what, url)
        infos = {store.unstrip_protocol(name): info for name, info in sorted(found.items()) if info["type"] == "file"}
        if not infos:
            raise UserError(f"{what}: no object matches {url}.")
        return [_shard(store, what, folder, most_gb, *named) for named in expanded_values(infos.items(), what)]

    with in_threads(find, expand_braces(pattern, what), _MAX_REQUESTS) as found:
        return [shard for some in found for shard in some]


def _store(what: str, scheme: str) -> Any:
    from fsspec import filesystem  # slow to import, and rarely needed

    if scheme not in _PACKAGES:
        raise UserError(f"{what}: unknown scheme '{scheme}'.{suggest(scheme, _PACKAGES)}")
    # Parallel requests within a shard would take gigabytes of memory.
    options: dict[str, Any] = {"max_concurrency": 1} if scheme == "s3" else {}
    try:
        if scheme in ("http", "https"):
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
            options = {"client_kwargs": {"timeout": timeout, "trust_env": True}}
        # Use no caches, because credentials and objects may have changed.
        return filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError:
        raise missing_package(what, _PACKAGES[scheme], "remote") from None


def _shard(store: Any, what: str, folder: Path, most_gb: float | None, url: str, info: Mapping[str, Any]) -> RemoteFile:
    if info["type"] != "file" or info["size"] is None:
        raise UserError(f"{what}: {url} is a folder, or its size is unknown. Use the URLs of objects, such as {url}/*.")
    version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name)), "")
    # Whole seconds, which every file system stores exactly.
    mtime_ns = int(digest(info["size"], version), 16) % 2**31 * 10**9
    return RemoteFile(_file_of(url, folder), info["size"], mtime_ns, url, what, store, most_gb)


def _fetch_all(missing: Sequence[RemoteFile], folder: Path, most_gb: float | None) -> None:
    stopped, received = Event(), dict[Path, int]()
    with progress_bar(sized=True) as progress:
        task = progress.add_task("Downloading shards", total=_require_room(missing, folder, most_gb))

        def fetch(shard: RemoteFile) -> None:
            def show_progress(value: int) -> None:
                if stopped.is_set():
                    raise UserError("stopped")
                received[shard.path] = value
                progress.update(task, completed=sum(list(received.values())))

            get_shard(shard, show_progress)

        with in_threads(fetch, missing, _MAX_REQUESTS, stopped=stopped) as fetched:
            list(fetched)


def get_shard(shard: RemoteFile, on_bytes: Callable[[int], None]) -> None:
    """Download a shard into its file. `on_bytes` receives the number of bytes so far, and may raise to stop it."""
    from fsspec import Callback

    received = 0

    def count(_: object, value: int) -> None:
        nonlocal received
        received = value
        if received > shard.size:
            raise UserError(f"{shard.what}: {shard.url} sends more than the {shard.size:,} bytes that it announced.")
        on_bytes(value)

    def get() -> None:
        callback = Callback(hooks={"": count})
        _call(shard.store, "get_file", shard.url, str(part), received=lambda: received, callback=callback)
        found = _call(shard.store, "info", shard.url)
        if _shard(shard.store, shard.what, shard.path.parent.parent, None, shard.url, found) != shard:
            raise UserError(f"{shard.what}: {shard.url} changed during the download. Run the command again.")
        if (size := part.stat().st_size) != shard.size:
            raise ValueError(f"{size:,} of {shard.size:,} bytes arrived")

    shard.path.parent.mkdir(exist_ok=True)
    remove_parts(shard.path.parent)
    with atomic_path(shard.path) as part:
        _with_retries(get, shard.what, shard.url)
        os.utime(part, ns=(time_ns(), shard.mtime_ns))


def _require_room(missing: Sequence[RemoteFile], folder: Path, most_gb: float | None) -> int:
    """Return the size of the missing shards, after checking that the folder has room for them."""
    replaced, needed = {shard.path for shard in missing}, sum(shard.size for shard in missing)
    held, room = space_of(folder, most_gb, replaced)
    if needed > max(room, 0):
        size, full, free = (f"{max(count, 0) / 1e9:,.3g} GB" for count in (needed, held, room))
        raise UserError(
            f"{missing[0].what}: {amount(len(missing), 'shard')} of {size} must be downloaded, but {folder}, which "
            f"holds {full}, has room for {free}. Delete shards that no run needs, use fewer shards, set data.dir to a "
            "larger disk, raise data.cache_gb, or set data.window=16, which keeps 32 training shards at a time."
        )
    return needed


def space_of(folder: Path, most_gb: float | None, replaced: Collection[Path] = (), coming: int = 0) -> tuple[int, int]:
    """Return the bytes that downloaded shards need, and the bytes that are free for further shards.

    Args:
        folder: the folder of the shards.
        most_gb: see `fetch_shards`.
        replaced: files that will be replaced and do not count.
        coming: the bytes of shards that are being downloaded.
    """
    folders = [folder.parent / name for name in (KEPT, WINDOW)]
    files = [file for kept in folders for file in kept.glob("*/[!.]*") if file not in replaced]
    held, room = sum(map(_size, files)) + coming, shutil.disk_usage(folder).free - _MARGIN - coming
    return held, room if most_gb is None else min(room, round(most_gb * 1e9) - held)


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # another process removed it
        return file.stat().st_size
    return 0


def _call(
    store: Any, method: str, *given: str, received: Callable[[], int] = int, limit_s: float = 0, **options: Any
) -> Any:
    """Call a method of a store, within a time limit. A download may take longer if bytes keep arriving.

    Args:
        store: the store.
        method: the name of its method.
        given: the arguments.
        received: returns how many bytes have arrived so far.
        limit_s: seconds until an answer must arrive. Default: `_SILENCE_S`.
        options: further arguments.

    Raises:
        TimeoutError: the store is slower than `_MIN_RATE`.
    """
    if not getattr(store, "async_impl", False):  # Hugging Face's own library has limits
        return getattr(store, method)(*given, **options)
    future = asyncio.run_coroutine_threadsafe(getattr(store, f"_{method}")(*given, **options), store.loop)
    since, before, limit_s = monotonic(), received(), limit_s or _SILENCE_S
    try:
        while not wait([future], timeout=min(1, limit_s)).done:
            if (passed := monotonic() - since) > limit_s:
                if (now := received()) - before < _MIN_RATE * passed:
                    raise TimeoutError(f"it sends less than {_MIN_RATE:,} bytes per second")
                since, before = monotonic(), now
        return future.result()
    finally:
        future.cancel()


def _with_retries(query: Callable[[], Any], what: str, url: str) -> Any:
    """Query a store. Repeat a failed query unless its error is `_PERMANENT`.

    Raises:
        UserError: all attempts failed.
    """
    for pause in (0, *_RETRY_PAUSES_S):
        sleep(pause)
        try:
            return query()
        except UserError:
            raise
        except Exception as error:  # each package raises its own types
            root: BaseException = error
            while root.__cause__ is not None:
                root = root.__cause__
            text = f"{type(root).__name__}: {first_line(root)}".replace(url, "it")
            if why := next((why for pattern, why in _PERMANENT.items() if re.search(pattern, text, re.IGNORECASE)), ""):
                break
    raise UserError(f"{what}: {'' if url in what else f'{url}: '}{(why or text).rstrip('.:')}.")


def list_files(what: str, pattern: str, folder: Path, most_gb: float | None) -> dict[str, RecordFile]:
    """Map the URL of each shard that a pattern names to its file, without downloading it.

    Raises:
        UserError: a package, credentials or an object is missing.
    """
    return {shard.url: shard for shard in list_shards(f"{what}={pattern}", pattern, folder.absolute(), most_gb)}


_DOWNLOADING: set[RemoteFile] = set()  # the files that this process is downloading


def _reserve(wanted: RemoteFile, folder: Path) -> None:
    """Wait until there is room for a file, then add the file to `_DOWNLOADING`.

    Raises:
        UserError: the disk has no room, although no download of this process is running.
    """
    close_files()
    waited = 0.0
    while (room := _make_room(wanted, folder)) < wanted.size:
        if waited > _PATIENCE_S:
            size, free = (f"{max(count, 0) / 1e9:,.3g} GB" for count in (wanted.size, room))
            raise UserError(
                f"{wanted.what}: a shard of {size} must be downloaded, but {folder} has room for {free} next to "
                "the shards in use. Set data.dir to a larger disk, raise data.cache_gb, or lower data.window."
            )
        sleep(0.05)
        waited = 0 if _DOWNLOADING else waited + 0.05


def _make_room(wanted: RemoteFile, folder: Path) -> int:
    """Remove files that no process has open, least recently used first, and return the free bytes."""
    with locked(folder / ".lock"):
        coming = sum(file.size for file in list(_DOWNLOADING) if file.path.is_relative_to(folder.parent))
        room = space_of(folder, wanted.most_gb, coming=coming)[1]
        for file in sorted(folder.glob("*/[!.]*"), key=lambda file: file.stat().st_atime_ns):
            if room >= wanted.size:
                break
            with suppress(OSError), file.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()
                room += os.fstat(stream.fileno()).st_size
        if room >= wanted.size:
            _DOWNLOADING.add(wanted)
        return room


_SERVE = "from augment.data.sources.remote import serve; serve()"

_IDLE_PROCESSES: list[subprocess.Popen[bytes]] = []


def fetch_in_process(shard: RemoteFile, stopped: Event) -> None:
    """Download a shard into its file in another process, until `stopped` is set. Several threads may call this.

    Raises:
        UserError: the shard cannot be downloaded.
    """
    try:
        process = _IDLE_PROCESSES.pop()
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
    _IDLE_PROCESSES.append(process)
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
    """Download the shards that arrive on stdin, and answer each with an error or an empty string on stdout.

    The process ends soon after the training process has ended or was killed.
    """
    parent = os.getppid()

    def check_parent(_: int) -> None:
        if os.getppid() != parent:
            raise UserError("stopped")

    with suppress(EOFError, BrokenPipeError):
        while True:
            shard: RemoteFile = pickle.load(sys.stdin.buffer)
            error = ""
            try:
                get_shard(shard, check_parent)
            except Exception as found:
                error = str(found) if isinstance(found, UserError) else f"{shard.what}: {describe_error(found)}."
            pickle.dump(error, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    os._exit(0)  # a regular exit prints warnings about open connections
