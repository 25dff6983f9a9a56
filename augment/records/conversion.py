"""Write a data set in another format: shard by shard, in several processes, to be gone on with when it was stopped."""

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import numpy as np
from PIL import Image

from augment.dataset import Dataset, Picture, Split, Task
from augment.errors import UserError, first_line
from augment.files import write_whole
from augment.progress import progress_bar
from augment.records.lists import CLASSES_FILE
from augment.records.manifest import MANIFEST, Done, read_manifest, total_checksum
from augment.records.tfrecord import IMAGE
from augment.records.told import Meaning, Told, check_numbers, tell
from augment.records.writers import FORMATS, Sample
from augment.stored import name_of, open_picture, read_encoded, to_rgb

_SEED = 0  # of the order of train
_PROBED = 64  # pictures, by which the size of all is estimated
_WORTHWHILE = 2.0  # seconds of work for a process; it takes about one to start
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
    pictures: tuple[tuple[Picture, Told], ...]


def convert(dataset: Dataset, out: Path, options: Options, *, jobs: int = 1) -> list[Done]:
    """Write both splits. Shards that an earlier, stopped call has finished are kept if they are whole.

    Each shard is read again by the format's reader, and compared with what was to be written. Pictures of train are
    written in an order drawn once, so that those who read shards in order meet all classes.

    Args:
        dataset: what is written.
        out: folder, which is made.
        options: in which form.
        jobs: processes, at most; no more are started than there are shards, and only for seconds of work each.

    Returns:
        The shards in order, train first.

    Raises:
        UserError: the folder holds something else, there is no room, or a picture cannot be read.
    """
    meaning = Meaning(dataset.task, dataset.classes)
    _check_names(meaning, options)
    for split in (dataset.train, dataset.val):
        check_numbers(split)
    ordered = {"train": _shuffled(_pairs(dataset.train, meaning)), "val": _pairs(dataset.val, meaning)}
    settings = {**asdict(options), "data": _digest(meaning, ordered)}
    known = read_manifest(out, settings)
    shards, expected, seconds = _cut(ordered, options)
    _check_room(out, expected if not known else 0)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}.") from None
    for left in out.glob(".*.part"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    if meaning.task != "regress":
        write_whole(out / CLASSES_FILE, "".join(f"{name}\n" for name in dataset.classes))
    # Anew, for its last line may not be whole.
    lines = [settings, *map(asdict, known.values())]
    write_whole(out / MANIFEST, "".join(json.dumps(line) + "\n" for line in lines))
    tasks = [(shard, out, options, meaning, known.get(shard.name)) for shard in shards]
    done: dict[str, Done] = {}
    with (
        _results(tasks, max(1, min(jobs, len(tasks), int(seconds / _WORTHWHILE)))) as results,
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
        files = {split: [name for shard in found if shard.split == split for name in shard.files] for split in ordered}
        told = {split: [target for _, target in pairs] for split, pairs in ordered.items()}
        try:
            FORMATS[options.to].finish(out, {split: (files[split], told[split]) for split in ordered}, meaning)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror or error}.") from None
        manifest.write(json.dumps({"pictures": total, "checksum": total_checksum(found)}) + "\n")
    return found


_Pairs = Sequence[tuple[Picture, Told]]


def _pairs(split: Split, meaning: Meaning) -> _Pairs:
    return list(zip(split.files, tell(split.targets, meaning.task), strict=True))


def _shuffled(pairs: _Pairs) -> _Pairs:
    return [pairs[place] for place in np.random.default_rng(_SEED).permutation(len(pairs)).tolist()]


def _digest(meaning: Meaning, splits: Mapping[str, _Pairs]) -> str:
    digest = blake2b("\n".join([meaning.task, *meaning.names]).encode(), digest_size=12)
    for name, pairs in splits.items():
        digest.update(f"\0{name}".encode())
        for picture, told in pairs:
            target = told.numbers or told.places
            digest.update(f"{name_of(picture)}\0{target}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


_NOUNS: Mapping[Task, str] = {"classify": "class", "multilabel": "label", "regress": "number"}


def _check_names(meaning: Meaning, options: Options) -> None:
    noun = _NOUNS[meaning.task]
    if len(set(meaning.names)) < len(meaning.names):
        twice, _ = Counter(meaning.names).most_common(1)[0]
        raise UserError(f"data: '{twice}' is the name of more than one {noun}. Allowed: a name each.")
    for name in meaning.names:
        if name != name.strip() or name.splitlines() != [name]:
            file = "a header" if meaning.task == "regress" else CLASSES_FILE
            raise UserError(f"the {noun} '{name}' has blanks around its name or lines in it, which {file} cannot.")
        if name != name.encode(errors="replace").decode():
            shown = name.encode(errors="replace").decode()
            raise UserError(f"the {noun} '{shown}' has letters that are none in Unicode. Allowed: names that are text.")
        if meaning.task == "regress" and options.to == "tfrecord" and name == IMAGE:
            raise UserError(f"the number '{name}' is named as the pictures are. Allowed: other names in data.targets.")
        if meaning.task == "classify" and options.to == "folder" and ("/" in name or name.startswith(".")):
            raise UserError(f"the class '{name}' cannot be a folder. Choose other names with data.classes=FILE.")


def _cut(splits: Mapping[str, _Pairs], options: Options) -> tuple[list[Shard], float, float]:
    """Return the shards, the bytes that they will take, and how long it takes to load their pictures, all about."""
    shards: list[Shard] = []
    expected = seconds = 0.0
    for split, pairs in splits.items():
        probed = pairs[:: -(-len(pairs) // _PROBED)]
        begin = perf_counter()
        mean = sum(len(_load(picture, options)) for picture, _ in probed) / len(probed)
        seconds += (perf_counter() - begin) * len(pairs) / len(probed)
        expected += mean * len(pairs)
        each = max(1, round(options.shard_mb * 2**20 / max(mean, 1)))
        count = -(-len(pairs) // each)
        width = max(5, len(str(count)))
        for number in range(count):
            start, stop = number * len(pairs) // count, (number + 1) * len(pairs) // count
            shards.append(Shard(f"{split}-{number:0{width}}-of-{count:0{width}}", start, tuple(pairs[start:stop])))
    return shards, expected, seconds


def _check_room(out: Path, expected: float) -> None:
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if expected > free:
        raise UserError(f"--out {out}: {expected / 1e6:,.1f} MB are needed, and there is room for {free / 1e6:,.1f}.")


_Task = tuple[Shard, Path, Options, Meaning, Done | None]


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
    shard, out, options, meaning, known = task
    form = FORMATS[options.to]
    told = [target for _, target in shard.pictures]

    def read(files: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
        # A target that lies not with its picture is in the list of its split, which is checked when it is written.
        for place, (found, picture) in enumerate(form.read(out, files, meaning)):
            yield meaning.exact(told[place] if found is None else found), picture

    if known is not None:
        with suppress(UserError, OSError, LookupError, ValueError):  # then it is written anew
            size = _size(out, known.files)
            count, checksum = _checksum(read(known.files))
            if (count, size, checksum) == (len(shard.pictures), known.size, known.checksum):
                return replace(known, kept=True)
    samples = [
        Sample(number, _key(number, picture), _load(picture, options), target)
        for number, (picture, target) in enumerate(shard.pictures, start=shard.first)
    ]
    part = out / f".{uuid4().hex}.part"
    try:
        part.mkdir()
        files = form.write(part, shard.name, samples, meaning)
        for parent in {Path(name).parent for name in files}:
            (out / parent).mkdir(parents=True, exist_ok=True)
        for name in files:
            os.replace(part / name, out / name)
    except OSError as error:
        raise UserError(f"{out / shard.name}: cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    wanted = _checksum((meaning.exact(sample.told), sample.picture) for sample in samples)
    try:
        found = _checksum(read(files))
    except (LookupError, ValueError) as error:
        raise UserError(f"{out / shard.name}: what was written reads differently: {first_line(error)}.") from None
    if found != wanted:
        raise UserError(
            f"{out / shard.name}: what was written reads differently: {found[0]:,} of {wanted[0]:,} pictures."
        )
    return Done(shard.name, tuple(files), found[0], _size(out, files), found[1])


def _size(out: Path, files: Sequence[str]) -> int:
    return sum((out / name).stat().st_size for name in files)


def _checksum(pictures: Iterator[tuple[bytes, bytes]]) -> tuple[int, str]:
    count = total = 0
    for target, picture in pictures:
        count += 1
        digest = blake2b(target + b"\0", digest_size=16)
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
    upright = to_rgb(image)
    scale = options.size / min(upright.size)
    width, height = (max(options.size, round(side * scale)) for side in upright.size)
    stream = BytesIO()
    upright.resize((width, height), Image.Resampling.LANCZOS).save(stream, "JPEG", quality=options.quality)
    return stream.getvalue()
