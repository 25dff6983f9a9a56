"""The sources `imagenette` and `imagewoof`: ten easy and ten hard ImageNet classes, downloaded and unpacked once."""

import logging
import sys
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from gzip import BadGzipFile
from lzma import LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from augment.data.dataset import DATA_DIR, Dataset
from augment.data.formats.folder import scan_folder
from augment.data.sources.registry import Source, source
from augment.params import DOWNLOADS, WRITES, Choice, Text, setting
from augment.support.errors import UserError, first_line
from augment.support.files import expanded
from augment.support.untrusted_files import locked


@dataclass(frozen=True)
class Archive:
    """A packed dataset on a server."""

    url: str  # the official address. The last part is the archive's file name
    md5: str  # its checksum, 32 hexadecimal digits

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def folder(self, directory: Path) -> Path:
        """Return the folder that the archive is unpacked to."""
        return expanded(directory).absolute() / self.name.removesuffix(".tgz")


def prepare_archive(archive: Archive, directory: Path, mirror: str | None = None) -> Path:
    """Download and unpack an archive into `directory`, and return the folder that holds train and val.

    The folder has the name of the archive, and exists only when it is complete. Concurrent processes wait for the
    first. An archive that is already in `directory` is used. `mirror` is another address of the same archive.

    Raises:
        UserError: the archive cannot be downloaded, its checksum differs, or it does not hold a dataset.
    """
    folder = archive.folder(directory)
    if not _holds_splits(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / f".{folder.name}.lock"):  # removing the lock file afterwards would cause a race
                if folder.exists() and not _holds_splits(folder):
                    raise UserError(f"{folder} lacks the folders train and val. Remove it to create it again.")
                if not folder.exists():
                    _unpack(_downloaded(archive, folder.parent, mirror or archive.url), folder)
        except OSError as error:  # from the disk
            raise UserError(
                f"{error.filename or folder}: {error.strerror or error}. {folder} cannot be created. Set data.dir to a "
                "writable folder with free space."
            ) from error
    return folder


def _downloaded(archive: Archive, directory: Path, url: str) -> Path:
    """Return the archive's file. Download it if it is missing or has a different checksum."""
    import pooch  # slow to import, like requests
    from requests import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    names = {"registry": {archive.name: f"md5:{archive.md5}"}, "urls": {archive.name: url}}
    try:
        downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=15)  # seconds without a byte
        fetcher = pooch.create(directory, base_url="", retry_if_failed=2, **names)
        return Path(fetcher.fetch(archive.name, downloader=downloader))
    except (RequestException, ValueError) as error:  # from the network, or a wrong checksum
        raise UserError(
            f"{url} cannot be downloaded: {first_line(error).rstrip('.')}.\n"
            f"Without a network, put {archive.name} (md5 {archive.md5}) into {directory}, or use data=sample, which "
            "needs no download."
        ) from error


def _unpack(file: Path, folder: Path) -> None:
    """Unpack an archive, and move the folder that holds train and val to `folder`."""
    try:
        with TemporaryDirectory(prefix=".unpacking-", dir=folder.parent) as temporary, tarfile.open(file) as archive:
            content = Path(temporary) / "content"
            archive.extractall(content, filter="data")  # rejects paths outside the folder content
            root = next((path for path in (content, *content.iterdir()) if _holds_splits(path)), None)
            if root is None:
                raise UserError(f"{file} lacks the folders train and val. Use an archive that holds both.")
            root.rename(folder)
    except (tarfile.TarError, BadGzipFile, LZMAError, EOFError, zlib.error) as error:
        reason = first_line(error).rstrip(":")
        raise UserError(f"{file} cannot be unpacked: {reason}. Remove it to download it again.") from error


def _holds_splits(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "val").is_dir()


_HOST = "https://s3.amazonaws.com/fast-ai-imageclas"

# The class folders of both datasets are named by WordNet IDs.
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


@source("imagenette")
@dataclass(frozen=True, kw_only=True)
class Imagenette(Source):
    """Imagenette, ten easy ImageNet classes (Howard 2019), downloaded once."""

    # By variant: the short side of the images in pixels, or "full" for the original size.
    archives: ClassVar[Mapping[str, Archive]] = {
        "full": Archive(f"{_HOST}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612"),
        "320": Archive(f"{_HOST}/imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3"),
        "160": Archive(f"{_HOST}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412"),
    }

    variant: str = setting(
        Choice(default="160", options=("full", "320", "160"), doc="short side of the photos in px, or their full size")
    )
    dir: str = setting(Text(default=DATA_DIR, doc="folder for the archive and the photos", reach=WRITES))
    url: str | None = setting(
        Text(optional=True, doc="another address of the same archive. Default: the official server", reach=DOWNLOADS)
    )

    def load(self) -> Dataset:
        """Download and unpack missing files, and replace WordNet IDs with readable class names."""
        dataset = scan_folder(prepare_archive(self.archives[self.variant], Path(self.dir), self.url))
        return replace(dataset, classes=tuple(CLASS_NAMES.get(name, name) for name in dataset.classes))

    def downloads(self) -> str:
        """Return "source" if the archive is missing."""
        archive = self.archives[self.variant]
        folder = archive.folder(Path(self.dir))
        return "" if _holds_splits(folder) or (folder.parent / archive.name).exists() else "source"


@source("imagewoof")
@dataclass(frozen=True, kw_only=True)
class Imagewoof(Imagenette):
    """Imagewoof, ten dog breeds from ImageNet (Howard 2019), downloaded once."""

    archives: ClassVar[Mapping[str, Archive]] = {
        "full": Archive(f"{_HOST}/imagewoof2.tgz", "9aafe18bcdb1632c4249a76c458465ba"),
        "320": Archive(f"{_HOST}/imagewoof2-320.tgz", "0f46d997ec2264e97609196c95897a44"),
        "160": Archive(f"{_HOST}/imagewoof2-160.tgz", "3d200a7be99704a0d7509be2a9fbfe15"),
    }
