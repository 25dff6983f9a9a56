"""Summarize a dataset and report likely problems.

Every image is read once. The figure shows the targets, image sizes, aspect ratios, and images that look the same.
Unless images are 8-bit RGB, it also shows the values of each channel.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from augment.cli.compose import compose_recipe
from augment.cli.parser import Parser, png_file, readable_errors, writing
from augment.support.console import text_console
from augment.support.errors import UserError

OUT = Path("outputs/info.png")

_EXAMPLES = """\
  python -m augment info                                                the built-in sample
  python -m augment info data=folder data.root=DIR aug.size=224         images in folders, for training at 224 px
  python -m augment info data=filelist data.train=T.csv data.val=V.csv --out figure.png
  python -m augment info data=webdataset data.train='D/train-*.tar' data.val='D/val-*.tar'

Overrides work as in python -m trainer. Only data and aug.size have an effect. The exit code is 0 even if there are
problems.
"""


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        options, overrides = _parser().split(arguments)
        recipe = compose_recipe(overrides)
        source = recipe.source()
        # Slow imports, after the overrides have been validated.
        from augment.data.format_detection import find_format
        from augment.data.sources.loading import log_notices
        from augment.drawing.figure_style import DPI, save_figure
        from augment.tools.info.figure import draw
        from augment.tools.info.scan import as_trained, find_copies, scan_images, test_split_of
        from augment.tools.info.summary import Info
        from augment.tools.info.text import find_problems, report

        data = source.load()
        log_notices(data.notices)
        if not len(data.train):
            raise UserError(data.problems[0] if data.problems else "data.train contains no images.")
        data = find_format(source, replace(data, notices=()))
        facts = scan_images(data.train.files + data.val.files, data.faults)
        test, test_facts = test_split_of(source, data, facts)
        known = data.notices
        data, facts = as_trained(source, data, facts)
        log_notices(data.notices[len(known) :])  # about corrections of labels, which are no problem
        data = replace(data, notices=known)
        if not len(data.val) and not data.problems:
            data = replace(data, problems=(source.val_missing,))
        images = data.train.files + data.val.files
        copies = find_copies(images, facts)
        leaks = find_copies(images + test.files, np.append(facts, test_facts)) if len(test) else None
        info = Info(str(recipe.plain["data"]["source"]), recipe.aug.size, data, facts, copies, test, leaks)
        console = text_console()
        console.print(report(info, find_problems(info, skip_bad=getattr(source, "skip_bad", None))))
        with writing(f"--out {options.out}"):
            save_figure(draw(info), options.out, DPI)
        console.print(f"\n{options.out}")
    return 0


def _parser() -> Parser:
    parser = Parser("augment info", __doc__, _EXAMPLES, arguments="[key=value ...]")
    parser.add_argument("--out", type=png_file, default=OUT, metavar="FILE.png", help=f"the figure (default: {OUT})")
    return parser
