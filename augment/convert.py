"""Write data in a form that is fast to read: `python -m augment.convert data=... --to FORMAT --out DIR`.

Any source can be converted, whether its pictures have a class, labels or numbers to predict. What a stopped run has
finished is kept by the next one, after a check; everything that is written is read again by the format's own reader and
compared by count and checksum.
"""

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from augment.command import Parser, one_of, output, readable_errors
from augment.errors import UserError
from augment.records.conversion import Options, convert
from augment.records.manifest import Done, total_checksum
from augment.records.told import Meaning
from augment.records.writers import FORMATS
from augment.wording import amount

_EXAMPLES = """\
  data=folder data.root=DIR --to tfrecord --out OUT              as they are, in shards of 128 MiB
  data=imagenette --to webdataset --out OUT --size 256           larger ones brought to a short side of 256 px
  data=parquet data.train='D/train-*' data.val='D/test-*' --to folder --out OUT
  data=filelist data.train=T.csv data.val=V.csv 'data.targets=[age]' --to webdataset --out OUT"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors(), _goes_on():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        if options.to is None:
            raise UserError(f"--to: missing. Allowed: {', '.join(FORMATS)}.")
        if options.out is None:
            raise UserError("--out: missing. Allowed: a folder, which is made.")
        from augment.compose import compose_recipe  # Hydra takes a while
        from augment.sources import load_dataset

        if not any(override.lstrip("+").startswith("data=") for override in overrides):
            raise UserError("data: missing. Allowed: data=folder data.root=DIR, or another source.")
        source = compose_recipe(overrides).source()
        if source.balance != "none":
            raise UserError(f"data.balance: {source.balance} is for training. Allowed here: none.")
        dataset = load_dataset(source)
        form = Options(options.to, options.size, options.quality, options.shard_mb)
        done = convert(dataset, options.out, form, jobs=options.jobs)
        _print(done, options.to, FORMATS[options.to].usage(options.out, Meaning(dataset.task, dataset.classes)))
    return 0


@contextmanager
def _goes_on() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("stopped: the same command goes on, and keeps the shards that are whole\n")
        raise


def _print(shards: Sequence[Done], to: str, usage: str) -> None:
    for split in ("train", "val"):
        chosen = [shard for shard in shards if shard.split == split]
        pictures = sum(shard.pictures for shard in chosen)
        where, old = f" in {amount(len(chosen), 'shard')}", sum(shard.kept for shard in chosen)
        if to == "folder":  # which is cut as well, but nobody sees it
            where, old = "", sum(shard.pictures for shard in chosen if shard.kept)
        there = f", of which {old:,} {'was' if old == 1 else 'were'} there already" if old else ""
        sys.stdout.write(f"{split}: {amount(pictures, 'picture')}{where}{there}\n")
    sys.stdout.write(f"All were read again: checksum {total_checksum(shards)}\n")
    sys.stdout.write(f"To use them: {usage}\n")


def _whole(low: int, high: int) -> Callable[[str], int]:
    """Return a `type` for a flag that takes a whole number within bounds."""

    def convert_flag(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: a whole number from {low:,} to {high:,}")
        return int(text)

    return convert_flag


def _parser() -> Parser:
    parser = Parser(
        "augment.convert", "Write data in another format.", _EXAMPLES, arguments="data=NAME [data.key=value ...]"
    )
    formats = "; ".join(f"{name}: {form.doc}" for name, form in FORMATS.items())
    parser.add_argument("--to", type=one_of(*FORMATS), metavar="FORMAT", help=formats)
    parser.add_argument("--out", type=output, metavar="DIR", help="where to write; gone on with if it was stopped")
    parser.add_argument(
        "--size", type=_whole(1, 65_500), default=0, metavar="PX", help="bring larger pictures to this short side"
    )
    parser.add_argument(
        "--quality", type=_whole(1, 100), default=90, metavar="N", help="of the JPEGs that this makes (90)"
    )
    parser.add_argument(
        "--shard-mb", type=_whole(1, 100_000), default=128, metavar="MB", help="size of a shard in MiB, about (128)"
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--jobs", type=_whole(1, 1024), default=cores, metavar="N", help=f"processes, at most ({cores})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
