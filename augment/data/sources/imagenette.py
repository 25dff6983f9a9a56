"""The sources `imagenette` and `imagewoof`: ten easy and ten hard classes of ImageNet, downloaded and unpacked once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from augment.data.dataset import DATA_DIR, Dataset
from augment.data.formats.folder import scan_folder
from augment.data.sources.download import Archive, needs_download, prepare_archive
from augment.data.sources.registry import Source, source
from augment.params import DOWNLOADS, WRITES, Choice, Text, setting

_HOST = "https://s3.amazonaws.com/fast-ai-imageclas"

# The class folders of both are WordNet's numbers.
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
    """Imagenette, ten easy classes of ImageNet (Howard 2019), downloaded once."""

    # By variant: the length of an image's short side in pixels, "full" for the original size.
    archives: ClassVar[Mapping[str, Archive]] = {
        "full": Archive(f"{_HOST}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612"),
        "320": Archive(f"{_HOST}/imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3"),
        "160": Archive(f"{_HOST}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412"),
    }

    variant: str = setting(
        Choice(default="160", options=("full", "320", "160"), doc="short side of the photos in px, or full size")
    )
    dir: str = setting(Text(default=DATA_DIR, doc="folder for the archive and the photos", reach=WRITES))
    url: str | None = setting(
        Text(optional=True, doc="where to download from; null: the official server", reach=DOWNLOADS)
    )

    def load(self) -> Dataset:
        """Download and unpack missing files; replace WordNet's numbers by readable class names."""
        dataset = scan_folder(prepare_archive(self._archive, Path(self.dir)))
        return replace(dataset, classes=tuple(CLASS_NAMES.get(name, name) for name in dataset.classes))

    def downloads(self) -> str:
        """Return "source" if the archive is not there."""
        return "source" if needs_download(self._archive, Path(self.dir)) else ""

    @property
    def _archive(self) -> Archive:
        archive = self.archives[self.variant]
        if self.url:
            mirror = Archive(self.url)
            # Another file name may mean another archive, of an unknown checksum.
            archive = replace(archive, url=self.url) if mirror.name == archive.name else mirror
        return archive


@source("imagewoof")
@dataclass(frozen=True, kw_only=True)
class Imagewoof(Imagenette):
    """Imagewoof, ten breeds of dogs in ImageNet (Howard 2019), downloaded once."""

    archives: ClassVar[Mapping[str, Archive]] = {
        "full": Archive(f"{_HOST}/imagewoof2.tgz", "9aafe18bcdb1632c4249a76c458465ba"),
        "320": Archive(f"{_HOST}/imagewoof2-320.tgz", "0f46d997ec2264e97609196c95897a44"),
        "160": Archive(f"{_HOST}/imagewoof2-160.tgz", "3d200a7be99704a0d7509be2a9fbfe15"),
    }
