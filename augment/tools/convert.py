"""Convert a dataset to another format, and optionally reduce large images.

Any source for classification, multi-label classification or regression can be converted. Images that Pillow can
open, but DALI cannot decode, become JPEGs, such as AVIF and GIF. The result is written to a temporary folder next to
OUT, read back as in training, compared, and renamed to OUT.
"""

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from augment.cli.compose import compose_recipe
from augment.cli.parser import Parser, one_of, output, readable_errors, whole_number, writing
from augment.data.conversion import FORMATS, convert, convert_foreign, reading_settings
from augment.data.dataset import Dataset
from augment.data.format_detection import find_format
from augment.data.sources import Source
from augment.data.sources.files import Folder
from augment.data.sources.loading import log_notices, select
from augment.support.errors import UserError
from augment.support.formatting import amount, printable

_EXAMPLES = """\
  python -m augment convert data=folder data.root=DIR --to webdataset --out OUT
  python -m augment convert data=imagenette --to folder --out OUT --size 256
  python -m augment convert data=parquet data.train='D/train-*' data.val='D/test-*' --to folder --out OUT
  python -m augment convert data=filelist data.train=T.csv data.val=V.csv 'data.targets=[age]' --to webdataset --out OUT
"""


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        options, overrides = _parser().split(arguments)
        if options.to is None or options.out is None:
            raise UserError(f"--to and --out are required. Add --to {' or '.join(FORMATS)} and --out NEW_FOLDER.")
        if not any(override.lstrip("+").startswith("data=") for override in overrides):
            raise UserError("data is required. Add data=folder data.root=DIR, or another source.")
        source = compose_recipe(overrides).source()
        dataset = select(source, _load(source, options))
        log_notices(dataset.notices)
        with writing(f"--out {options.out}"):
            convert(dataset, options.out, options.to, size=options.size, quality=options.quality)
        for name, split in (("train", dataset.train), ("val", dataset.val)):
            sys.stdout.write(f"{name}: {amount(len(split), 'image')}\n")
        usage = as_overrides(reading_settings(dataset, options.to, options.out))
        sys.stdout.write(printable(f"Verified by reading everything back. To use the data: {usage}\n"))
    return 0


def _load(source: Source, options: Namespace) -> Dataset:
    """Load a dataset, including images that Pillow can open, but DALI cannot decode. They become JPEGs."""
    if source.balance != "none":
        raise UserError(f"data.balance: {source.balance} works only in training. Set data.balance=none.")
    if source.test_fraction is not None:
        raise UserError(
            f"data.test_fraction={source.test_fraction:g} would leave out images. Remove it here, and set it when you "
            "train on the converted data."
        )
    dataset = source.load(with_foreign=True) if isinstance(source, Folder) else source.load()
    if dataset.problems:
        raise UserError(dataset.problems[0])
    if not len(dataset.val) and not source.cuts_val:
        raise UserError(source.val_missing)
    dataset = find_format(source, dataset)
    if options.size and not dataset.pixels.is_rgb:
        raise UserError(f"--size writes 8-bit RGB images, but the images have {dataset.pixels}. Remove --size.")
    skip_bad = getattr(source, "skip_bad", False)
    checked, foreign = convert_foreign(dataset, ("convert", source), quality=options.quality, skip_bad=skip_bad)
    if foreign:
        sys.stdout.write(f"{amount(foreign, 'image becomes', 'images become')} JPEG\n")
    return checked


def as_overrides(settings: Mapping[str, Any]) -> str:
    """Return the section `data`, `{source: name, ...}`, as overrides for a shell."""
    tokens = []
    for key, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        tokens.append(f"data={text}" if key == "source" else f"data.{key}={text}")
    return shlex.join(tokens)


def _parser() -> Parser:
    parser = Parser(
        "augment convert", __doc__, _EXAMPLES, arguments="data=NAME [data.key=value ...] --to FORMAT --out DIR"
    )
    formats = "; ".join(f"{name}: {doc}" for name, doc in FORMATS.items())
    parser.add_argument("--to", type=one_of(*FORMATS), metavar="FORMAT", help=formats)
    parser.add_argument("--out", type=output, metavar="DIR", help="output folder, new or empty")
    parser.add_argument("--size", type=whole_number(1, 65_500), default=0, metavar="PX",
                        help="short side of larger images after resizing (default: keep all sizes)")  # fmt: skip
    parser.add_argument("--quality", type=whole_number(1, 100), default=90, metavar="N",
                        help="quality of re-encoded JPEGs (default: 90)")  # fmt: skip
    return parser
