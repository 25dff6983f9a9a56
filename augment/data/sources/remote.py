"""Fetch shards from object stores and web servers into a folder.

A shard's modification time there stands for its ETag, so that one rename says that it is complete and which version it
is, and what is cached of local files, such as indexes, is renewed with it.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic, sleep, time_ns
from typing import Any

from augment.data.formats.records import MATCHES, RecordFile, expand_braces
from augment.support.background import in_threads
from augment.support.console import progress_bar
from augment.support.errors import UserError, first_line, missing_package, suggest
from augment.support.files import atomic_path, digest, remove_parts
from augment.support.formatting import amount
from augment.support.untrusted_files import locked

# The package for each kind of store, and what stores call that which changes with an object.
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
_VERSIONS = ("ETag", "etag", "blob_id", "Last-Modified", "LastModified", "updated")

_TOGETHER = 8  # shards that are asked for or fetched at once
_WAITS = (0.5, 2.0, 8.0)  # seconds between attempts
_SILENCE_S = 30  # without a byte, or below the least rate
_LEAST = 1000  # bytes per second
_LISTING_S = 600  # for the names of a bucket
_MARGIN = 2**30  # bytes that stay free on the disk

# The folders, below data.dir, of shards that stay and of those that are removed when there is no room for others.
KEPT, WINDOW = "remote", "window"

# What is found in errors that another attempt would not change, and what it means.
_LASTING = {
    r"credential|\b401\b": "no credentials, or no valid ones. Allowed: those of the store's own tools, such as "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, `gcloud auth application-default login` or HF_TOKEN; "
    "FSSPEC_S3_ANON=true for a public bucket of S3.",
    r"\b403\b|forbidden|PermissionError: (?!\[)": "access is forbidden. Allowed: credentials that may read it.",
    r"\b(404|410)\b|FileNotFoundError|NoSuch": "there is no such object.",
    r"Errno (28|122)\b": "the disk is full. Allowed: data.dir on a larger one.",
}


@dataclass(frozen=True)
class Shard:
    """An object of a store, and the file that it becomes."""

    url: str
    size: int  # in bytes
    version: str  # its ETag or time; empty if the store has neither
    file: Path  # in a folder of its own
    what: str  # the setting that names it, for messages
    store: Any = field(compare=False)  # the file system of fsspec

    @property
    def time_ns(self) -> int:
        """The file's modification time: whole seconds, which all file systems keep."""
        return int(digest(self.size, self.version), 16) % 2**31 * 10**9

    @property
    def is_here(self) -> bool:
        """Whether the file is there, complete and of this version."""
        return RecordFile(self.file, self.size, self.time_ns).is_here


def is_url(pattern: str) -> bool:
    """Whether a setting names something elsewhere, such as "s3://bucket/train-{000..009}.tar"."""
    return bool(re.match(r"\w[\w+.-]*://", pattern))


def fetch_shards(given: Mapping[str, str], folder: Path, most_gb: float | None) -> dict[str, list[Path]]:
    """Return the files of the shards that URLs name, by key, after fetching those that are missing or have changed.

    Processes that share the folder wait for each other.

    Args:
        given: by key path, "data.train": URLs, with {000..009}, {a,b} and, where stores list, * ? [ ]; others are left.
        folder: where the files are kept.
        most_gb: how many 10^9 bytes may be there; None: as many as the disk holds.

    Raises:
        UserError: a package, credentials, an object or room for it is missing, or fetching fails.
    """
    listed = {key: list_shards(f"{key}={given[key]}", given[key], folder) for key in given if is_url(given[key])}
    shards = {shard.file: shard for some in listed.values() for shard in some}
    try:
        if not all(shard.is_here for shard in shards.values()):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / ".lock"):  # it is kept: removing it would be a race
                _fetch([shard for shard in shards.values() if not shard.is_here], folder, most_gb)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror or error}, while fetching shards.") from None
    return {key: [shard.file for shard in some] for key, some in listed.items()}


def _file_of(url: str, folder: Path) -> Path:
    name = url.partition("?")[0].rpartition("/")[2]
    fits = name.strip(".") and name.isprintable() and len(name.encode()) < 200  # a server may list any names
    return folder / digest(url) / (name if fits else "shard")


def list_shards(what: str, pattern: str, folder: Path) -> list[Shard]:
    """Return the shards that a URL names, by the setting `what`; for errors see `fetch_shards`."""
    store = _store(what, pattern.partition("://")[0])

    def find(url: str) -> list[Shard]:
        if url.startswith("http") or not MATCHES.search(url):
            return [_shard(store, what, url, _patiently(lambda: _ask(store, "info", url), what, url), folder)]
        found = _patiently(lambda: _ask(store, "glob", url, limit_s=_LISTING_S, detail=True), what, url)
        infos = {store.unstrip_protocol(name): info for name, info in sorted(found.items()) if info["type"] == "file"}
        if not infos:
            raise UserError(f"{what}: no object matches {url}.")
        return [_shard(store, what, name, info, folder) for name, info in infos.items()]

    with in_threads(find, expand_braces(pattern, what), _TOGETHER) as found:
        return [shard for some in found for shard in some]


def _store(what: str, scheme: str) -> Any:
    from fsspec import filesystem  # here, as these are slow to import, and few programs need them

    if scheme not in _PACKAGES:
        raise UserError(f"{what}: unknown scheme '{scheme}'.{suggest(scheme, _PACKAGES)}")
    # More at once within a shard would take gigabytes of memory.
    options: dict[str, Any] = {"max_concurrency": 1} if scheme == "s3" else {}
    try:
        if scheme in ("http", "https"):
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
            options = {"client_kwargs": {"timeout": timeout, "trust_env": True}}
        # New each time, as credentials and objects may have changed.
        return filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError:
        raise missing_package(what, _PACKAGES[scheme], "remote") from None


def _shard(store: Any, what: str, url: str, info: Mapping[str, Any], folder: Path) -> Shard:
    if info["type"] != "file" or info["size"] is None:
        raise UserError(f"{what}: {url} is a folder, or of unknown size. Allowed: objects, such as {url}/*.")
    version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name)), "")
    return Shard(url, info["size"], version, _file_of(url, folder), what, store)


def _fetch(missing: Sequence[Shard], folder: Path, most_gb: float | None) -> None:
    stopped, got = Event(), dict[Path, int]()
    with progress_bar(sized=True) as progress:
        task = progress.add_task("Fetching shards", total=_require_room(missing, folder, most_gb))

        def fetch(shard: Shard) -> None:
            def show(value: int) -> None:
                if stopped.is_set():
                    raise UserError("stopped")
                got[shard.file] = value
                progress.update(task, completed=sum(list(got.values())))

            get_shard(shard, show)

        with in_threads(fetch, missing, _TOGETHER, stopped=stopped) as fetched:
            list(fetched)


def get_shard(shard: Shard, show: Callable[[int], None] | None = None) -> None:
    """Fetch a shard into its file; `show` is told how many bytes came, and may stop it by an error."""
    from fsspec import Callback

    came = 0

    def count(_: object, value: int) -> None:
        nonlocal came
        came = value
        if came > shard.size:
            raise UserError(f"{shard.what}: {shard.url} sends more than the {shard.size:,} bytes that it announced.")
        if show:
            show(value)

    def get() -> None:
        callback = Callback(hooks={"": count})
        _ask(shard.store, "get_file", shard.url, str(part), came=lambda: came, callback=callback)
        found = _ask(shard.store, "info", shard.url)
        if _shard(shard.store, shard.what, shard.url, found, shard.file.parent.parent) != shard:
            raise UserError(f"{shard.what}: {shard.url} changed while it was fetched. Allowed: run it again.")
        if (size := part.stat().st_size) != shard.size:
            raise ValueError(f"{size:,} of {shard.size:,} bytes came")

    shard.file.parent.mkdir(exist_ok=True)
    remove_parts(shard.file.parent)
    with atomic_path(shard.file) as part:
        _patiently(get, shard.what, shard.url)
        os.utime(part, ns=(time_ns(), shard.time_ns))


def _require_room(missing: Sequence[Shard], folder: Path, most_gb: float | None) -> int:
    """Return the bytes of shards that the folder has room for."""
    replaced, needed = {shard.file for shard in missing}, sum(shard.size for shard in missing)
    held, room = space_of(folder, most_gb, replaced)
    if needed > max(room, 0):
        size, full, free = (f"{max(count, 0) / 1e9:,.3g} GB" for count in (needed, held, room))
        raise UserError(
            f"{missing[0].what}: {amount(len(missing), 'shard')} of {size} must be fetched, but {folder}, which holds "
            f"{full}, has room for {free}. Allowed: data.dir on a larger disk, a larger data.cache_gb, fewer shards, "
            "to remove what is not needed there, or data.window=16, which holds twice 16 shards of train at a time."
        )
    return needed


def space_of(folder: Path, most_gb: float | None, replaced: Collection[Path] = (), coming: int = 0) -> tuple[int, int]:
    """Return how many bytes of shards are kept or come, and for how many more there is room."""
    files = [file for name in (KEPT, WINDOW) for file in (folder.parent / name).glob("*/[!.]*") if file not in replaced]
    held, room = sum(map(_size, files)) + coming, shutil.disk_usage(folder).free - _MARGIN - coming
    return held, room if most_gb is None else min(room, round(most_gb * 1e9) - held)


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # another process removed it
        return file.stat().st_size
    return 0


def _ask(
    store: Any, method: str, *given: str, came: Callable[[], int] = int, limit_s: float = 0, **options: Any
) -> Any:
    """Return what a method of a store returns; a TimeoutError says that it is slower than the least rate.

    Args:
        store: the store.
        method: the name of its method.
        given: the arguments.
        came: returns how many bytes have come so far.
        limit_s: seconds in which an answer without bytes must come; 0: as few as between two bytes.
        options: further arguments.
    """
    if not getattr(store, "async_impl", False):  # Hugging Face has limits of its own
        return getattr(store, method)(*given, **options)
    future = asyncio.run_coroutine_threadsafe(getattr(store, f"_{method}")(*given, **options), store.loop)
    since, before, limit_s = monotonic(), came(), limit_s or _SILENCE_S
    try:
        while not wait([future], timeout=min(1, limit_s)).done:
            if (passed := monotonic() - since) > limit_s:
                if (now := came()) - before < _LEAST * passed:
                    raise TimeoutError(f"it sends less than {_LEAST:,} bytes per second")
                since, before = monotonic(), now
        return future.result()
    finally:
        future.cancel()


def _patiently(ask: Callable[[], Any], what: str, url: str) -> Any:
    """Return what a store answers, after several attempts if that may help; a `UserError` says why it does not."""
    for pause in (0, *_WAITS):
        sleep(pause)
        try:
            return ask()
        except UserError:
            raise
        except Exception as error:  # of any of the packages
            root: BaseException = error
            while root.__cause__ is not None:
                root = root.__cause__
            text = f"{type(root).__name__}: {first_line(root)}".replace(url, "it")
            if why := next((why for sign, why in _LASTING.items() if re.search(sign, text, re.IGNORECASE)), ""):
                break
    raise UserError(f"{what}: {'' if url in what else f'{url}: '}{(why or text).rstrip('.:')}.")
