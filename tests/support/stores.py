"""The same images in larger files: tar shards as Python's tarfile writes them, and arrays of decoded pixels."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from loaders import build_loader

from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug

# A plan that draws nothing: pixels depend on the image alone.
FIXED = build_plan(parse_aug({"size": 16, "train": {"center_crop": {}}}), "train")


def make_fixed_loader(split: Split, batch_size: int) -> Loader:
    """Return a loader of decoded pixels in order, by the plan `FIXED` on the CPU."""
    return build_loader(FIXED, split, batch_size=batch_size, seed=0, raw=True)


def epochs(loader: Loader, number: int) -> None:
    """Read whole epochs."""
    for _ in range(number):
        list(loader)


def write_tar(file: Path, members: Mapping[str, bytes]) -> Path:
    """Write a tar file."""
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


def write_shards(folder: Path, files: Sequence[Path], targets: Sequence[int], shards: int, name: str = "train") -> str:
    """Write images with their targets as tar shards; return the pattern of their names."""
    for shard in range(shards):
        members: dict[str, bytes] = {}
        for index in range(shard, len(files), shards):
            members[f"photos/{index:04}.jpg"] = files[index].read_bytes()
            members[f"photos/{index:04}.cls"] = b"%d\n" % targets[index]
        write_tar(folder / f"{name}-{shard:03}.tar", members)
    return str(folder / f"{name}-{{000..{shards - 1:03}}}.tar")


def write_arrays(folder: Path, files: Sequence[Path], targets: Sequence[int], side: int = 40) -> tuple[str, str]:
    """Write images as DALI decodes them, resized to a square, and their targets; return the two .npy files."""
    plan = build_plan(parse_aug({"size": side}), "val")
    loader = build_loader(plan, Split(tuple(files), tuple(targets)), batch_size=len(files), seed=0, raw=True)
    (batch,) = loader
    np.save(folder / "x.npy", batch.images.permute(0, 2, 3, 1).contiguous().numpy())
    np.save(folder / "y.npy", np.array(targets))
    return str(folder / "x.npy"), str(folder / "y.npy")
