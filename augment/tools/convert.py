"""Convert a data set to another format, resizing large images if wanted.

Any source can be converted, whether its targets are classes, labels or numbers. Images that Pillow opens and DALI does
not, such as AVIF and GIF, become JPEG. Interrupted conversions resume: complete shards are validated and kept.
Everything that is written is read back by the format's reader and compared by count and checksum.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from augment.cli.parser import Parser, one_of, output, readable_errors, whole_number
from augment.data.convert.conversion import Options, convert
from augment.data.convert.manifest import total_checksum
from augment.data.convert.schema import Schema
from augment.data.convert.writers import FORMATS
from augment.support.errors import UserError
from augment.support.text import amount, printable
from augment.support.timing import cores

_EXAMPLES = """\
  python -m augment convert data=folder data.root=DIR --to tfrecord --out OUT
  python -m augment convert data=imagenette --to webdataset --out OUT --size 256
  python -m augment convert data=parquet data.train='D/train-*' data.val='D/test-*' --to folder --out OUT
  python -m augment convert data=filelist data.train=T.csv data.val=V.csv 'data.targets=[age]' --to webdataset --out OUT
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(arguments)
        if options.to is None:
            raise UserError(f"--to: missing. Allowed: {', '.join(FORMATS)}.")
        if options.out is None:
            raise UserError("--out: missing. Allowed: a folder, which is created if it is missing.")
        from augment.cli.compose import compose_recipe  # Hydra is slow to import
        from augment.data.convert.foreign import take_foreign
        from augment.data.dataset import DATA_DIR
        from augment.data.sources.loading import select
        from augment.data.sources.notices import log_notices
        from augment.data.sources.registry import VAL_MISSING
        from augment.support.files import digest

        if not any(override.lstrip("+").startswith("data=") for override in overrides):
            raise UserError("data: missing. Allowed: data=folder data.root=DIR, or another source.")
        source = compose_recipe(overrides).source()
        if source.balance != "none":
            raise UserError(f"data.balance: {source.balance} applies to training only. Allowed here: none.")
        listed = source.for_conversion()
        if listed.problems or not (len(listed.val) or source.cuts_val):
            raise UserError(listed.problems[0] if listed.problems else VAL_MISSING)
        cache = Path(DATA_DIR) / f"checked-{digest('convert', source)}.json"
        skip_bad = getattr(source, "skip_bad", False)
        checked, note = take_foreign(listed, quality=options.quality, skip_bad=skip_bad, cache=cache)
        dataset = select(source, checked)
        log_notices(dataset.notices)
        if note:
            sys.stdout.write(printable(f"{note}\n"))
        form = Options(options.to, options.size, options.quality, options.shard_mb)
        try:
            done = convert(dataset, options.out, form, jobs=options.jobs)
        except KeyboardInterrupt:
            sys.stderr.write("stopped: the same command resumes and keeps complete shards\n")
            raise
        for split in ("train", "val"):
            shards = [shard for shard in done if shard.split == split]
            old = [shard for shard in shards if shard.kept]
            where, kept = f" in {amount(len(shards), 'shard')}", len(old)
            if options.to == "folder":  # its shards are internal
                where, kept = "", sum(shard.images for shard in old)
            images = amount(sum(shard.images for shard in shards), "image")
            note = f", {kept:,} of them kept from before" if kept else ""
            sys.stdout.write(f"{split}: {images}{where}{note}\n")
        sys.stdout.write(f"Verified by reading everything back: checksum {total_checksum(done)}\n")
        usage = FORMATS[options.to].usage(options.out, Schema(dataset.task, dataset.classes))
        sys.stdout.write(f"To use the data: {usage}\n")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "augment convert", __doc__, _EXAMPLES, arguments="data=NAME [data.key=value ...] --to FORMAT --out DIR"
    )
    formats = "; ".join(f"{name}: {form.doc}" for name, form in FORMATS.items())
    parser.add_argument("--to", type=one_of(*FORMATS), metavar="FORMAT", help=formats)
    parser.add_argument(
        "--out",
        type=output,
        metavar="DIR",
        help="folder to write to; if a conversion to it was interrupted, it resumes",
    )
    parser.add_argument(
        "--size",
        type=whole_number(1, 65_500),
        default=0,
        metavar="PX",
        help="reduce the short side of larger images to this (default: keep all sizes)",
    )
    parser.add_argument(
        "--quality",
        type=whole_number(1, 100),
        default=90,
        metavar="N",
        help="quality of re-encoded JPEGs (default: 90)",
    )
    parser.add_argument(
        "--shard-mb",
        type=whole_number(1, 100_000),
        default=128,
        metavar="MB",
        help="approximate size of a shard in MiB (default: 128)",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(1, 1024),
        default=cores(),
        metavar="N",
        help=f"largest number of processes (default: {cores()})",
    )
    return parser
