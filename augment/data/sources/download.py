"""Download and unpack archives of images, once."""

import fcntl
import logging
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile
from lzma import LZMAError
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from augment.support.console import progress_bar
from augment.support.errors import UserError, first_line
from augment.support.files import expanded

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0  # without a byte
ATTEMPTS = 4
_CHUNK = 1 << 18  # bytes


@dataclass(frozen=True)
class Archive:
    """A packed data set on a server.

    Attributes:
        url: its address; the last part of the path is the archive's file name.
        md5: its checksum, 32 hexadecimal digits; None if unknown.
    """

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        """The file name."""
        return Path(unquote(urlsplit(self.url).path)).name


def prepare_archive(archive: Archive, directory: Path) -> Path:
    """Download and unpack an archive into `directory`; return the folder that holds train and val.

    The folder is named like the archive and appears in one step. Concurrent processes wait for the first.

    Args:
        archive: the archive to download.
        directory: the parent folder of the archive and its content. An archive of the right name in it is used.

    Raises:
        UserError: the archive cannot be downloaded, its checksum differs, or it does not hold a data set.
    """
    folder = _folder_of(archive, directory)
    directory = folder.parent
    if _holds_splits(folder):
        return folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _lock(directory / f".{folder.name}.lock", folder):
            if _holds_splits(folder):
                return folder
            if folder.exists():
                raise UserError(f"{folder} has no folders train and val in it; remove it to have it made again.")
            file = directory / archive.name
            if file.exists():
                _check_md5(file, archive, "remove it to have it downloaded from")
            else:
                _download(archive, file)
            _unpack(file, folder)
    except OSError as error:  # of the disk: `_download` and `_unpack` handle those of the network and the archive
        raise UserError(f"{error.filename or directory}: {error.strerror or error}, while making {folder}.") from error
    return folder


def needs_download(archive: Archive, directory: Path) -> bool:
    """Return whether `prepare_archive` would download the archive; see there."""
    folder = _folder_of(archive, directory)
    return not (_holds_splits(folder) or (folder.parent / archive.name).exists())


def _folder_of(archive: Archive, directory: Path) -> Path:
    named = re.fullmatch(r"(.+?)(\.tar)?\.\w+", archive.name)
    if urlsplit(archive.url).scheme not in ("http", "https") or not named:
        raise UserError(
            f"data.url={archive.url}: allowed is http(s)://<host>/<path>/<archive>, such as imagenette2.tgz."
        )
    return expanded(directory).absolute() / named[1]


def _download(archive: Archive, file: Path) -> None:
    # Not at the top: these imports are slow, and few programs download.
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    logger.info("downloading %s", archive.url)
    names = {"registry": {file.name: None}, "urls": {file.name: archive.url}}
    try:
        with progress_bar(DownloadColumn(), TransferSpeedColumn()) as progress:
            downloader = _Downloader(progress, archive)
            fetcher = pooch.create(file.parent, base_url="", retry_if_failed=ATTEMPTS - 1, **names)
            fetcher.fetch(file.name, downloader=downloader)
    except RequestException as error:
        raise _unreachable(archive, file.parent, error) from error
    try:
        # Not left to pooch, which would download a wrong archive several times.
        _check_md5(file, archive, "it was removed; start again to download it from")
    except UserError:
        file.unlink()
        raise


class _Downloader:
    """Downloads for pooch, which calls it for each attempt, and acts as pooch's progress bar.

    Args:
        progress: shows the bar.
        archive: the archive to download.
    """

    def __init__(self, progress: Progress, archive: Archive) -> None:
        self.total = 0  # set by pooch
        self._archive = archive
        self._progress = progress
        self._task = progress.add_task(f"Downloading {archive.name}", total=None)

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        from pooch import HTTPDownloader
        from requests import HTTPError

        self.reset()
        try:
            HTTPDownloader(progressbar=self, chunk_size=_CHUNK, timeout=TIMEOUT_S)(url, output_file, pooch)
        except HTTPError as error:
            # Do not retry a refusal.
            if error.response.status_code < 500 and error.response.status_code not in (408, 429):
                raise _unreachable(self._archive, pooch.path, error) from error
            raise

    def reset(self) -> None:
        """Start from 0."""
        self._progress.update(self._task, completed=0)

    def update(self, size: int) -> None:
        """Advance by some bytes."""
        self._progress.update(self._task, total=self.total or None, advance=size)

    def close(self) -> None:
        """Do nothing: the bar ends with its context."""


def _check_md5(file: Path, archive: Archive, advice: str) -> None:
    from pooch import file_hash

    if archive.md5 is None:
        logger.warning("%s: its md5 is not known and was not checked", archive.url)
    elif file_hash(str(file), "md5") != archive.md5.lower():
        raise UserError(f"{file} is damaged or another archive: its md5 is not {archive.md5}; {advice} {archive.url}.")


def _unpack(file: Path, folder: Path) -> None:
    """Unpack `file` into a temporary folder and rename the folder with train and val to `folder`; needs the lock."""
    temporary = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        with progress_bar() as progress, file.open("rb") as stream, tarfile.open(fileobj=stream) as archive:
            task = progress.add_task(f"Unpacking {file.name}", total=file.stat().st_size)
            temporary.mkdir()
            for member in archive:
                archive.extract(member, temporary, filter="data")  # refuses members outside the folder
                progress.update(task, completed=stream.tell())
        root = next((path for path in (temporary, *temporary.iterdir()) if _holds_splits(path)), None)
        if root is None:
            raise UserError(f"{file} holds no folders train and val.")
        root.rename(folder)
    except (tarfile.TarError, BadGzipFile, LZMAError, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")  # without the messages of each compression method
        raise UserError(f"{file} cannot be unpacked: {reason}. Remove it to have it downloaded again.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _lock(file: Path, folder: Path) -> Iterator[None]:
    """Lock a file; it is kept, since removing it would be a race."""
    with file.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that makes %s", folder)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _holds_splits(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "val").is_dir()


def _unreachable(archive: Archive, directory: Path, error: Exception) -> UserError:
    md5 = f" (md5 {archive.md5})" if archive.md5 else ""
    return UserError(
        f"{archive.url} cannot be downloaded: {first_line(_reason(error))}.\n"
        f"Without a network, put {archive.name}{md5} into {directory}, or use data=sample, which needs no download."
    )


def _reason(error: BaseException) -> BaseException:
    """Return the system's error below those of requests and urllib3, whose texts quote each other; else the error."""
    reason, below = error, error.__cause__ or error.__context__
    while below is not None:
        reason = below if isinstance(below, OSError) else reason
        below = below.__cause__ or below.__context__
    return reason
