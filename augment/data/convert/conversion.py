"""Write a data set in another format, shard by shard, in several processes. Interrupted conversions resume."""

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

from augment.data.convert.lists import CLASSES_FILE
from augment.data.convert.manifest import MANIFEST, Done, read_manifest, total_checksum
from augment.data.convert.schema import Schema, Values
from augment.data.convert.writers import FORMATS, Sample
from augment.data.dataset import Dataset, ImageRef
from augment.data.formats.tfrecord import IMAGE
from augment.data.images import file_name, name_of, open_image, read_encoded, to_rgb
from augment.data.targets.kind import known_kinds
from augment.support.console import progress_bar
from augment.support.errors import UserError, first_line
from augment.support.files import write_atomically
from augment.support.text import amount

_SEED = 0  # of the order of train
_PROBED = 64  # images, by which the size of all is estimated
_WORTHWHILE = 2.0  # seconds of work for a process; it takes about one to start
_KEY = re.compile(r"[^A-Za-z0-9_-]+")
_KEY_LENGTH = 60  # tar's oldest form has room for names of 100


@dataclass(frozen=True)
class Options:
    """The options of a conversion.

    Attributes:
        to: name of the format.
        size: short side in px to which larger images are reduced; 0 keeps all sizes.
        quality: quality of re-encoded JPEGs.
        shard_mb: approximate size of a shard in MiB.
    """

    to: str
    size: int = 0
    quality: int = 90
    shard_mb: int = 128


@dataclass(frozen=True)
class Shard:
    """Some images of a split, which go into one file.

    Attributes:
        name: the file's name without its extension.
        first: index of the first image in the split's order.
        images: the images with their targets.
    """

    name: str
    first: int
    images: tuple[tuple[ImageRef, Values], ...]


def convert(dataset: Dataset, out: Path, options: Options, *, jobs: int = 1) -> list[Done]:
    """Write both splits, except for complete shards of an interrupted conversion.

    Each shard is read back by the format's reader and compared. The images of train are shuffled once, so that
    sequential readers meet all classes early.

    Args:
        dataset: the data set to write.
        out: the folder to write to; made when missing.
        options: the form to write.
        jobs: largest number of processes; at most one per shard, and one per few seconds of work.

    Returns:
        The shards in order, train first.

    Raises:
        UserError: the folder has other content, there is not enough space, or an image cannot be read.
    """
    schema = Schema(dataset.task, dataset.classes)
    _check_names(schema, options)
    train, val = (
        list(zip(split.files, schema.values(split.targets), strict=True)) for split in (dataset.train, dataset.val)
    )
    shuffled = np.random.default_rng(_SEED).permutation(len(train)).tolist()
    ordered = {"train": [train[index] for index in shuffled], "val": val}
    settings = {**asdict(options), "data": _digest(schema, ordered)}
    known = read_manifest(out, settings)
    shards, expected, seconds = _cut(ordered, options)
    parent = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if expected > free and not known:
        raise UserError(f"--out {out}: {expected / 1e6:,.1f} MB are needed, and there is room for {free / 1e6:,.1f}.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}.") from None
    for left in out.glob(".*.part"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    if schema.task != "regress":
        write_atomically(out / CLASSES_FILE, "".join(f"{name}\n" for name in dataset.classes))
    # Rewritten, since its last line may not be whole.
    lines = [settings, *map(asdict, known.values())]
    write_atomically(out / MANIFEST, "".join(json.dumps(line) + "\n" for line in lines))
    tasks = [(shard, out, options, schema, known.get(shard.name)) for shard in shards]
    done: dict[str, Done] = {}
    with (
        _results(tasks, max(1, min(jobs, len(tasks), int(seconds / _WORTHWHILE)))) as results,
        (out / MANIFEST).open("a") as manifest,
        progress_bar() as progress,
    ):
        bar = progress.add_task("Writing images", total=sum(map(len, ordered.values())))
        for result in results:
            done[result.shard] = result
            if not result.kept:
                manifest.write(json.dumps(asdict(result)) + "\n")
                manifest.flush()
            progress.advance(bar, result.images)
        found = [done[shard.name] for shard in shards]
        total = sum(result.images for result in found)
        files = {split: [name for shard in found if shard.split == split for name in shard.files] for split in ordered}
        rows = {split: (files[split], [values for _, values in pairs]) for split, pairs in ordered.items()}
        try:
            FORMATS[options.to].finish(out, rows, schema)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror or error}.") from None
        manifest.write(json.dumps({"images": total, "checksum": total_checksum(found)}) + "\n")
    return found


_Pairs = Sequence[tuple[ImageRef, Values]]


def _digest(schema: Schema, splits: Mapping[str, _Pairs]) -> str:
    digest = blake2b("\n".join([schema.task, *schema.names]).encode(), digest_size=12)
    for name, pairs in splits.items():
        digest.update(f"\0{name}".encode())
        for image, values in pairs:
            digest.update(f"{name_of(image)}\0{values}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _check_names(schema: Schema, options: Options) -> None:
    if schema.task not in known_kinds():
        allowed = ", ".join(known_kinds())
        raise UserError(f"data: its task is {schema.task}, which no format can hold. Allowed: {allowed}.")
    noun = known_kinds()[schema.task].noun
    if len(set(schema.names)) < len(schema.names):
        twice, _ = Counter(schema.names).most_common(1)[0]
        raise UserError(f"data: '{twice}' is the name of more than one {noun}. Allowed: a name each.")
    for name in schema.names:
        if name != name.strip() or name.splitlines() != [name]:
            file = "a header" if schema.task == "regress" else CLASSES_FILE
            raise UserError(f"the {noun} '{name}' has blanks around its name or lines in it, which {file} cannot.")
        shown = name.encode(errors="replace").decode()
        if name != shown:
            raise UserError(f"the {noun} '{shown}' has characters that are not Unicode. Allowed: names that are text.")
        if schema.task == "regress" and options.to == "tfrecord" and name == IMAGE:
            raise UserError(f"the number '{name}' is named as the images are. Allowed: other names in data.targets.")
        if schema.task == "classify" and options.to == "folder" and ("/" in name or name.startswith(".")):
            raise UserError(f"the class '{name}' cannot be a folder. Choose other names with data.classes=FILE.")


def _cut(splits: Mapping[str, _Pairs], options: Options) -> tuple[list[Shard], float, float]:
    """Return the shards, the bytes that they will take, and how long it takes to load their images, all about."""
    shards: list[Shard] = []
    expected = seconds = 0.0
    for split, pairs in splits.items():
        probed = pairs[:: -(-len(pairs) // _PROBED)]
        begin = perf_counter()
        mean = sum(len(_load(image, options)) for image, _ in probed) / len(probed)
        seconds += (perf_counter() - begin) * len(pairs) / len(probed)
        expected += mean * len(pairs)
        each = max(1, round(options.shard_mb * 2**20 / max(mean, 1)))
        count = -(-len(pairs) // each)
        width = max(5, len(str(count)))
        for number in range(count):
            start, stop = number * len(pairs) // count, (number + 1) * len(pairs) // count
            shards.append(Shard(f"{split}-{number:0{width}}-of-{count:0{width}}", start, tuple(pairs[start:stop])))
    return shards, expected, seconds


_Task = tuple[Shard, Path, Options, Schema, Done | None]


@contextmanager
def _results(tasks: Sequence[_Task], jobs: int) -> Iterator[Iterator[Done]]:
    if jobs == 1:
        yield map(_finish, tasks)
        return
    # Spawned: a fork could hold a lock of a thread that it does not have.
    context = multiprocessing.get_context("spawn")
    # Only this process handles Ctrl-C; the others finish their shard.
    pool = ProcessPoolExecutor(jobs, context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        yield (future.result() for future in as_completed([pool.submit(_finish, task) for task in tasks]))
    except BrokenProcessPool:
        raise UserError("a process was killed, probably because memory ran out. Resume with fewer --jobs.") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _finish(task: _Task) -> Done:
    """Write a shard, unless it is there and whole."""
    shard, out, options, schema, known = task
    form = FORMATS[options.to]

    def read(files: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
        # Targets that are not stored in a shard are in the list of their split, which `write_lists` verifies.
        for index, (found, image) in enumerate(form.read(out, files, schema)):
            yield schema.exact(shard.images[index][1] if found is None else found), image

    if known is not None:
        with suppress(UserError, OSError, LookupError, ValueError):  # then it is written again
            size = sum((out / name).stat().st_size for name in known.files)
            count, checksum = _checksum(read(known.files))
            if (count, size, checksum) == (len(shard.images), known.size, known.checksum):
                return replace(known, kept=True)
    samples = [
        Sample(number, _key(number, image), _load(image, options), target)
        for number, (image, target) in enumerate(shard.images, start=shard.first)
    ]
    part = out / f".{uuid4().hex}.part"
    try:
        part.mkdir()
        files = form.write(part, shard.name, samples, schema)
        for parent in {Path(name).parent for name in files}:
            (out / parent).mkdir(parents=True, exist_ok=True)
        for name in files:
            os.replace(part / name, out / name)
    except OSError as error:
        raise UserError(f"{out / shard.name}: cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    wanted = _checksum((schema.exact(sample.values), sample.image) for sample in samples)
    try:
        found = _checksum(read(files))
    except (LookupError, ValueError) as error:
        raise UserError(f"{out / shard.name}: differs when read back: {first_line(error)}.") from None
    if found != wanted:
        raise UserError(f"{out / shard.name}: differs when read back: {found[0]:,} of {amount(wanted[0], 'image')}.")
    size = sum((out / name).stat().st_size for name in files)
    return Done(shard.name, tuple(files), found[0], size, found[1])


def _checksum(images: Iterator[tuple[bytes, bytes]]) -> tuple[int, str]:
    count = total = 0
    for target, image in images:
        count += 1
        digest = blake2b(target + b"\0", digest_size=16)
        digest.update(image)
        total += int.from_bytes(digest.digest())
    return count, f"{total % 2**128:032x}"


def _key(number: int, image: ImageRef) -> str:
    stem = file_name(image).partition(".")[0]
    return f"{number:08}_{_KEY.sub('_', stem)[:_KEY_LENGTH]}"


def _load(ref: ImageRef, options: Options) -> bytes:
    """Return the encoded image, re-encoded as a smaller JPEG if it is too large."""
    try:
        if options.size:
            with open_image(ref) as image:
                if min(image.size) > options.size:
                    upright = to_rgb(image)  # the new file has no orientation tag
                    scale = options.size / min(upright.size)
                    width, height = (max(options.size, round(side * scale)) for side in upright.size)
                    stream = BytesIO()
                    smaller = upright.resize((width, height), Image.Resampling.LANCZOS)
                    smaller.save(stream, "JPEG", quality=options.quality)
                    return stream.getvalue()
        return bytes(read_encoded(ref))
    except OSError as error:
        raise UserError(f"{name_of(ref)}: cannot be read: {error.strerror or first_line(error)}.") from None
