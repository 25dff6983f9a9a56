"""Download and unpack archives of images, once."""

import fcntl
import logging
import re
import sys
import tarfile
import zlib
from dataclasses import dataclass
from gzip import BadGzipFile
from lzma import LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from augment.support.errors import UserError, first_line
from augment.support.files import expanded

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0  # without a byte


@dataclass(frozen=True)
class Archive:
    """A packed data set on a server."""

    url: str  # its address; the last part of the path is the archive's file name
    md5: str | None = None  # its checksum, 32 hexadecimal digits; None if unknown

    @property
    def name(self) -> str:
        """The file name."""
        return Path(unquote(urlsplit(self.url).path)).name

    def folder(self, directory: Path) -> Path:
        """Return the folder that it is unpacked to.

        Raises:
            UserError: the address is not that of an archive.
        """
        named = re.fullmatch(r"(.+?)(\.tar)?\.\w+", self.name)
        if urlsplit(self.url).scheme not in ("http", "https") or not named:
            allowed = "http(s)://<host>/<path>/<archive>, such as imagenette2.tgz"
            raise UserError(f"data.url={self.url}: allowed is {allowed}.")
        return expanded(directory).absolute() / named[1]


def prepare_archive(archive: Archive, directory: Path) -> Path:
    """Download and unpack an archive into `directory`; return the folder that holds train and val.

    The folder is named like the archive and appears in one step. Concurrent processes wait for the first. An archive of
    the right name that is there already is used.

    Raises:
        UserError: the archive cannot be downloaded, its checksum differs, or it does not hold a data set.
    """
    folder = archive.folder(directory)
    if _holds_splits(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("w") as lock:  # it is kept: removing it would be a race
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists() and not _holds_splits(folder):
                raise UserError(f"{folder} has no folders train and val in it; remove it to have it made again.")
            if not folder.exists():
                _unpack(_downloaded(archive, folder.parent), folder)
    except OSError as error:  # of the disk: those of the network and the archive are `UserError` already
        raise UserError(f"{error.filename or directory}: {error.strerror or error}, while making {folder}.") from error
    return folder


def needs_download(archive: Archive, directory: Path) -> bool:
    """Return whether `prepare_archive` would download the archive; see there."""
    folder = archive.folder(directory)
    return not (_holds_splits(folder) or (folder.parent / archive.name).exists())


def _downloaded(archive: Archive, directory: Path) -> Path:
    """Return the archive's file, which is downloaded if it is missing or another one; pooch checks it."""
    import pooch  # here, as this and requests are slow to import, and few programs download
    from requests import RequestException

    if archive.md5 is None:
        logger.warning("%s: its md5 is not known and was not checked", archive.url)
    pooch.get_logger().setLevel(logging.WARNING)
    md5 = archive.md5 and f"md5:{archive.md5}"
    names = {"registry": {archive.name: md5}, "urls": {archive.name: archive.url}}
    try:
        downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT_S)
        fetcher = pooch.create(directory, base_url="", retry_if_failed=2, **names)
        return Path(fetcher.fetch(archive.name, downloader=downloader))
    except (RequestException, ValueError) as error:  # of the network; of pooch: another checksum
        named = archive.name + (f" (md5 {archive.md5})" if archive.md5 else "")
        raise UserError(
            f"{archive.url} cannot be downloaded: {first_line(error).rstrip('.')}.\n"
            f"Without a network, put {named} into {directory}, or use data=sample, which needs no download."
        ) from error


def _unpack(file: Path, folder: Path) -> None:
    """Unpack an archive next to a folder, and rename what holds train and val to it."""
    try:
        with TemporaryDirectory(prefix=".unpacking-", dir=folder.parent) as temporary, tarfile.open(file) as archive:
            content = Path(temporary) / "content"
            archive.extractall(content, filter="data")  # refuses what would be outside
            root = next((path for path in (content, *content.iterdir()) if _holds_splits(path)), None)
            if root is None:
                raise UserError(f"{file} holds no folders train and val.")
            root.rename(folder)
    except (tarfile.TarError, BadGzipFile, LZMAError, EOFError, zlib.error) as error:
        reason = first_line(error).rstrip(":")
        raise UserError(f"{file} cannot be unpacked: {reason}. Remove it to have it downloaded again.") from error


def _holds_splits(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "val").is_dir()
