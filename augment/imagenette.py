"""The sources `imagenette` and `imagewoof`: ten easy and ten hard classes of ImageNet, downloaded and unpacked once."""

import fcntl
import hashlib
import logging
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from gzip import BadGzipFile
from http.client import HTTPException, HTTPResponse, InvalidURL
from lzma import LZMAError
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from rich.progress import DownloadColumn, TransferSpeedColumn

from augment.dataset import Dataset
from augment.errors import UserError, suggest
from augment.progress import progress_bar

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0  # without a byte
ATTEMPTS = 4  # since the last new byte
BACKOFF_S = 0.5  # before the second attempt; doubled before each further one
_BLOCK = 1 << 18  # bytes
_md5 = partial(hashlib.md5, usedforsecurity=False)


@dataclass(frozen=True)
class Archive:
    """A packed data set on the net.

    Attributes:
        url: where it is; the last part of the path is the archive's file name.
        md5: its checksum, 32 hexadecimal digits; None if unknown.
    """

    url: str
    md5: str | None

    @property
    def name(self) -> str:
        """The file name."""
        return Path(unquote(urlsplit(self.url).path)).name


_HOST = "https://s3.amazonaws.com/fast-ai-imageclas"

# By variant: the length of a picture's short side in pixels, "full" for the original size.
IMAGENETTE = {
    "full": Archive(f"{_HOST}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612"),
    "320": Archive(f"{_HOST}/imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3"),
    "160": Archive(f"{_HOST}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412"),
}
IMAGEWOOF = {
    "full": Archive(f"{_HOST}/imagewoof2.tgz", None),
    "320": Archive(f"{_HOST}/imagewoof2-320.tgz", None),
    "160": Archive(f"{_HOST}/imagewoof2-160.tgz", None),
}

# The folders of both are named by WordNet's numbers.
CLASS_NAMES = {
    # Imagenette
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
    # Imagewoof
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "dingo",
}


def name_classes(dataset: Dataset) -> Dataset:
    """Return the data set with readable class names in place of WordNet's numbers; other names stay as they are."""
    return replace(dataset, classes=tuple(CLASS_NAMES.get(name, name) for name in dataset.classes))


def prepare_imagenette(
    variant: str,
    directory: Path,
    url: str | None = None,
    md5: str | None = None,
    *,
    archives: Mapping[str, Archive] = IMAGENETTE,
) -> Path:
    """Return the folder that holds train and val of Imagenette, or of its like; make it at the first call.

    Args:
        variant: one of `archives`: "full", "320" or "160".
        directory: where the archive and the folder go. An archive of the right name that lies there already is used.
        url: another place to download from, of this archive or of one that is laid out alike.
        md5: the checksum to expect there. Without it the official one counts where the file name is the official one,
            as on a mirror, and an archive of another name goes unchecked.
        archives: the set's by variant: `IMAGENETTE` or `IMAGEWOOF`.

    Raises:
        UserError: the variant is unknown, the archive cannot be had, its checksum differs, or it does not hold a data
            set.
    """
    if variant not in archives:
        raise UserError(f"data.variant: unknown variant '{variant}'.{suggest(variant, archives)}")
    archive = archives[variant]
    if url is not None:
        given = Archive(url, md5)
        archive = replace(given, md5=md5 or (archive.md5 if given.name == archive.name else None))
    return prepare_archive(archive, directory)


def prepare_archive(archive: Archive, directory: Path) -> Path:
    """Download and unpack an archive into `directory`; return the folder that holds train and val.

    The folder is named like the archive and appears in one step. Processes that need it at once wait for the first.

    Raises:
        UserError: see `prepare_imagenette`.
    """
    named = re.fullmatch(r"(.+?)(\.tar)?\.\w+", archive.name)
    if urlsplit(archive.url).scheme not in ("http", "https") or not named:
        raise UserError(
            f"data.url={archive.url}: allowed is http(s)://<host>/<path>/<archive>, such as imagenette2.tgz."
        )
    stem = named[1]
    directory = directory.expanduser().absolute()
    folder = directory / stem
    if _holds_splits(folder):
        return folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _lock(directory / f".{stem}.lock", folder):
            if _holds_splits(folder):
                return folder
            if folder.exists():
                raise UserError(f"{folder} has no folders train and val in it; remove it to have it made again.")
            file = directory / archive.name
            if file.exists():
                _check_md5(file, archive, "remove it to have it downloaded from")
            else:
                download(archive, file)
            _unpack(file, folder)
    except OSError as error:  # of the disk: those of the network and of the archive have been dealt with
        raise UserError(f"{error.filename or directory}: {error.strerror or error}, while making {folder}.") from error
    return folder


def download(archive: Archive, file: Path) -> None:
    """Download an archive to `file`; what a former call left in <file>.part is kept and the rest asked for.

    Raises:
        UserError: the server cannot be reached, refuses, or keeps dropping the connection; the checksum differs.
    """
    part = file.with_name(f"{file.name}.part")
    longest, failures = _size(part), 0
    logger.info("downloading %s", archive.url)
    while True:
        try:
            _fetch(archive, part)
            break
        except (OSError, HTTPException, ValueError) as error:
            failures = 1 if _size(part) > longest else failures + 1
            longest = max(longest, _size(part))
            if _is_final(error) or failures == ATTEMPTS:
                raise _unreachable(archive, part, error) from error
            logger.info("%s: %s; trying again", archive.url, _reason(error))
            time.sleep(BACKOFF_S * 2 ** (failures - 1))
    try:
        _check_md5(part, archive, "it was removed; start again to download it from")
    except UserError:
        part.unlink()
        raise
    part.replace(file)


def _is_final(error: Exception) -> bool:
    """Tell what another attempt would not change: a refusal of the server, or a url that cannot be asked for."""
    if isinstance(error, HTTPError):
        return error.code < 500 and error.code not in (408, 429)
    return isinstance(error, (ValueError, InvalidURL))


def _fetch(archive: Archive, part: Path) -> None:
    """Ask once for what `part` lacks and append it; raise OSError or HTTPException when the connection breaks."""
    start = _size(part)
    request = Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:
            _save(response, part, start if response.status == 206 else 0)  # 200: all of it, whatever was asked for
    except HTTPError as error:
        if error.code != 416 or not start:
            raise
        # There is nothing beyond `start`: it is all there, or it is the part of another, longer archive.
        if error.headers.get("Content-Range") != f"bytes */{start}" and not _has_md5(part, archive.md5):
            part.unlink()
            _fetch(archive, part)


def _save(response: HTTPResponse, part: Path, start: int) -> None:
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    with (
        progress_bar(DownloadColumn(), TransferSpeedColumn()) as progress,
        part.open("ab" if start else "wb") as stream,
    ):
        task = progress.add_task(f"Downloading {part.stem}", completed=start, total=total)
        while block := response.read1(_BLOCK):
            stream.write(block)
            progress.advance(task, len(block))
        received = stream.tell()
    if total is not None and received < total:
        raise ConnectionError(f"the connection was cut after {received:,} of {total:,} bytes")


def _check_md5(file: Path, archive: Archive, advice: str) -> None:
    if archive.md5 is None:
        logger.warning("%s: its md5 is not known and was not checked", archive.url)
    elif not _has_md5(file, archive.md5):
        raise UserError(f"{file} is damaged or another archive: its md5 is not {archive.md5}; {advice} {archive.url}.")


def _has_md5(file: Path, md5: str | None) -> bool:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, _md5).hexdigest() == (md5 or "").lower()


def _unpack(file: Path, folder: Path) -> None:
    """Unpack `file` beside `folder` and rename what holds train and val to `folder`; the caller holds the lock."""
    beside = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
    try:
        beside.mkdir()
        _extract(file, beside)
        root = next((path for path in (beside, *beside.iterdir()) if _holds_splits(path)), None)
        if root is None:
            raise UserError(f"{file} holds no folders train and val.")
        root.rename(folder)
    except (tarfile.TarError, BadGzipFile, LZMAError, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")  # what each kind of compression has to say comes after it
        raise UserError(f"{file} cannot be unpacked: {reason}. Remove it to have it downloaded again.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _extract(file: Path, folder: Path) -> None:
    with (
        progress_bar() as progress,
        file.open("rb") as stream,
        tarfile.open(fileobj=stream) as archive,
    ):
        task = progress.add_task(f"Unpacking {file.name}", total=file.stat().st_size)
        for member in archive:
            archive.extract(member, folder, filter="data")  # refuses what would lie outside the folder
            progress.update(task, completed=stream.tell())


@contextmanager
def _lock(file: Path, folder: Path) -> Iterator[None]:
    """Hold the lock file; it stays behind, since to remove it would be a race."""
    with file.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that makes %s", folder)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _holds_splits(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "val").is_dir()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _unreachable(archive: Archive, part: Path, error: Exception) -> UserError:
    kept = f" {_size(part):,} bytes are kept in {part} and the rest is asked for next time." if _size(part) else ""
    md5 = f" (md5 {archive.md5})" if archive.md5 else ""
    return UserError(
        f"{archive.url} cannot be downloaded: {_reason(error)}.{kept}\n"
        f"Without a network put {archive.name}{md5} into {part.parent}, or use data=sample, which needs no download."
    )


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    return str(error.reason if isinstance(error, URLError) else error)
