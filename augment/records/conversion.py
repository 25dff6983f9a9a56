"""Write a data set in another format: shard by shard, in several processes, to be gone on with when it was stopped."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import numpy as np
from PIL import Image, ImageOps

from augment.dataset import Dataset, Picture, Split
from augment.errors import UserError, first_line
from augment.files import write_whole
from augment.progress import progress_bar
from augment.records.manifest import MANIFEST, Done, read_manifest, total_checksum
from augment.records.writers import CLASSES_FILE, FORMATS, Sample
from augment.stored import name_of, open_picture, read_encoded

_SEED = 0  # of the order of train
_PROBED = 64  # pictures, by which the size of all is estimated
_KEY = re.compile(r"[^A-Za-z0-9_-]+")
_KEY_LENGTH = 60  # tar's oldest form has room for names of 100


@dataclass(frozen=True)
class Options:
    """What is written.

    Attributes:
        to: name of the format.
        size: short side in px to which larger pictures are brought; 0 leaves all as they are.
        quality: of the JPEGs that this makes.
        shard_mb: size of a shard in MiB, about.
    """

    to: str
    size: int = 0
    quality: int = 90
    shard_mb: int = 128


@dataclass(frozen=True)
class Shard:
    """Some pictures of a split, which go into one file.

    Attributes:
        name: of the file, without its ending.
        first: place of the first picture in the split's order.
        pictures: the pictures with their targets.
    """

    name: str
    first: int
    pictures: tuple[tuple[Picture, int], ...]


def convert(dataset: Dataset, out: Path, options: Options, *, jobs: int = 1) -> list[Done]:
    """Write both splits. Shards that an earlier, stopped call has finished are kept if they are whole.

    Each shard is read again by the format's reader, and compared with what was to be written. Pictures of train are
    written in an order drawn once, so that those who read shards in order meet all classes.

    Args:
        dataset: what is written.
        out: folder, which is made.
        options: in which form.
        jobs: processes.

    Returns:
        The shards in order, train first.

    Raises:
        UserError: the folder holds something else, there is no room, or a picture cannot be read.
    """
    _check_names(dataset, options)
    ordered = {"train": _shuffled(dataset.train), "val": _shuffled(dataset.val, keep=True)}
    settings = {**asdict(options), "data": _digest(dataset.classes, ordered)}
    known = read_manifest(out, settings)
    shards, expected = _cut(ordered, options)
    _check_room(out, expected if not known else 0)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}.") from None
    for left in out.glob(".*.part"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    write_whole(out / CLASSES_FILE, "".join(f"{name}\n" for name in dataset.classes))
    # Anew, for its last line may not be whole.
    lines = [settings, *map(asdict, known.values())]
    write_whole(out / MANIFEST, "".join(json.dumps(line) + "\n" for line in lines))
    tasks = [(shard, out, options, dataset.classes, known.get(shard.name)) for shard in shards]
    done: dict[str, Done] = {}
    with (
        _results(tasks, min(jobs, len(tasks))) as results,
        (out / MANIFEST).open("a") as manifest,
        progress_bar() as progress,
    ):
        bar = progress.add_task("Writing pictures", total=sum(map(len, ordered.values())))
        for result in results:
            done[result.shard] = result
            if not result.kept:
                manifest.write(json.dumps(asdict(result)) + "\n")
                manifest.flush()
            progress.advance(bar, result.pictures)
        found = [done[shard.name] for shard in shards]
        total = sum(result.pictures for result in found)
        assert total == len(dataset.train) + len(dataset.val)
        manifest.write(json.dumps({"pictures": total, "checksum": total_checksum(found)}) + "\n")
    return found


def _shuffled(split: Split, *, keep: bool = False) -> list[tuple[Picture, int]]:
    # Others than classes were refused before.
    pairs = [(p, target) for p, target in zip(split.files, split.targets, strict=True) if isinstance(target, int)]
    if keep:
        return pairs
    return [pairs[place] for place in np.random.default_rng(_SEED).permutation(len(pairs)).tolist()]


def _digest(classes: Sequence[str], splits: Mapping[str, Sequence[tuple[Picture, int]]]) -> str:
    digest = blake2b("\n".join(classes).encode(), digest_size=12)
    for name, pairs in splits.items():
        digest.update(f"\0{name}".encode())
        for picture, target in pairs:
            digest.update(f"{name_of(picture)}\0{target}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _check_names(dataset: Dataset, options: Options) -> None:
    if dataset.task != "classify":
        what = "several labels" if dataset.task == "multilabel" else "numbers to predict"
        raise UserError(f"data: pictures with {what} are not written. Allowed: one class a picture.")
    for name in dataset.classes:
        if name != name.strip() or "\n" in name:
            raise UserError(
                f"the class '{name}' has blanks around its name or lines in it, which {CLASSES_FILE} cannot."
            )
        if options.to == "folder" and ("/" in name or name.startswith(".")):
            raise UserError(f"the class '{name}' cannot be a folder. Choose other names with data.classes=FILE.")


def _cut(splits: Mapping[str, Sequence[tuple[Picture, int]]], options: Options) -> tuple[list[Shard], float]:
    """Return the shards, and the bytes that they will take, about."""
    shards: list[Shard] = []
    expected = 0.0
    for split, pairs in splits.items():
        probed = pairs[:: -(-len(pairs) // _PROBED)]
        mean = sum(len(_load(picture, options)) for picture, _ in probed) / len(probed)
        expected += mean * len(pairs)
        each = max(1, round(options.shard_mb * 2**20 / max(mean, 1)))
        count = -(-len(pairs) // each)
        width = max(5, len(str(count)))
        for number in range(count):
            start, stop = number * len(pairs) // count, (number + 1) * len(pairs) // count
            shards.append(Shard(f"{split}-{number:0{width}}-of-{count:0{width}}", start, tuple(pairs[start:stop])))
    return shards, expected


def _check_room(out: Path, expected: float) -> None:
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if expected > free:
        raise UserError(f"--out {out}: {expected / 1e6:,.1f} MB are needed, and there is room for {free / 1e6:,.1f}.")


_Task = tuple[Shard, Path, Options, tuple[str, ...], Done | None]


@contextmanager
def _results(tasks: Sequence[_Task], jobs: int) -> Iterator[Iterator[Done]]:
    if jobs == 1:
        yield map(_finish, tasks)
        return
    # Processes of their own making: a copy of this one could hold a lock of a thread that it has not.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C is for this process; the others finish the shard that they are at.
    pool = ProcessPoolExecutor(jobs, context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        yield (future.result() for future in as_completed([pool.submit(_finish, task) for task in tasks]))
    except BrokenProcessPool:
        raise UserError("a process was killed, most likely for want of memory. Go on with fewer --jobs.") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _finish(task: _Task) -> Done:
    """Write a shard, unless it is there and whole."""
    shard, out, options, classes, known = task
    form = FORMATS[options.to]
    if known is not None:
        with suppress(UserError, OSError, LookupError):  # then it is written anew
            size = _size(out, known.files)
            count, checksum = _checksum(form.read(out, known.files, classes))
            if (count, size, checksum) == (len(shard.pictures), known.size, known.checksum):
                return replace(known, kept=True)
    samples = [
        Sample(number, _key(number, picture), _load(picture, options), target, classes[target])
        for number, (picture, target) in enumerate(shard.pictures, start=shard.first)
    ]
    part = out / f".{uuid4().hex}.part"
    try:
        part.mkdir()
        files = form.write(part, shard.name, samples)
        for name in files:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / name, out / name)
    except OSError as error:
        raise UserError(f"{out / shard.name}: cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    wanted = _checksum((sample.label, sample.picture) for sample in samples)
    found = _checksum(form.read(out, files, classes))
    if found != wanted:
        raise UserError(
            f"{out / shard.name}: what was written reads differently: {found[0]:,} of {wanted[0]:,} pictures."
        )
    return Done(shard.name, tuple(files), found[0], _size(out, files), found[1])


def _size(out: Path, files: Sequence[str]) -> int:
    return sum((out / name).stat().st_size for name in files)


def _checksum(pictures: Iterator[tuple[str, bytes]]) -> tuple[int, str]:
    count = total = 0
    for label, picture in pictures:
        count += 1
        digest = blake2b(label.encode() + b"\0", digest_size=16)
        digest.update(picture)
        total += int.from_bytes(digest.digest())
    return count, f"{total % 2**128:032x}"


def _key(number: int, picture: Picture) -> str:
    stem = name_of(picture).rpartition("/")[2].partition(".")[0]
    return f"{number:08}_{_KEY.sub('_', stem)[:_KEY_LENGTH]}"


def _load(picture: Picture, options: Options) -> bytes:
    """Return the bytes that are written: those there are, or of a smaller JPEG."""
    try:
        if options.size:
            with open_picture(picture) as image:
                if min(image.size) > options.size:
                    return _shrink(image, options)
        return bytes(read_encoded(picture))
    except OSError as error:
        raise UserError(f"{name_of(picture)}: cannot be read: {error.strerror or first_line(error)}.") from None


def _shrink(image: Image.Image, options: Options) -> bytes:
    # The orientation is a note in the file, which the new one does not have.
    upright = ImageOps.exif_transpose(image).convert("RGB")
    scale = options.size / min(upright.size)
    width, height = (max(options.size, round(side * scale)) for side in upright.size)
    stream = BytesIO()
    upright.resize((width, height), Image.Resampling.LANCZOS).save(stream, "JPEG", quality=options.quality)
    return stream.getvalue()
