"""`python -m augment.info data=...`: what a data set holds, and what looks wrong with it."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from augment.command import Parser, output, png_file, readable_errors, writing
from augment.compose import compose_recipe, key_of, parse

OUT = Path("outputs/info.png")

_EXAMPLES = """\
  python -m augment.info data=folder data.root=DIR
  python -m augment.info data=webdataset data.train='D/train-*.tar' data.val='D/val-*.tar' aug.size=224 --json info.json

Overrides are those of python -m trainer; only data and aug.size change something here. Every picture is read. Whatever
looks wrong, the exit code is 0.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        recipe = compose_recipe(overrides)
        source = recipe.source()
        # These take a while, which nobody should wait for whose overrides are wrong.
        from augment.figures import save_figure
        from augment.files import write_json
        from augment.info.findings import find_wrong
        from augment.info.picture import draw
        from augment.info.summary import describe
        from augment.info.text import report
        from augment.lettering import DPI
        from augment.sources.beside import note_names_beside

        name = str(recipe.plain["data"]["source"])
        data = source.unchecked()
        note_names_beside(source, data)
        info = describe(data, name, recipe.aug.size)
        chosen = shlex.join(token for token in overrides if key_of(parse(token)).split(".")[0] == "data")
        findings = find_wrong(info, skip_bad=getattr(source, "skip_bad", None), convert=chosen or "data=NAME")
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.print(report(info, findings))
        if options.json:
            wrong = [{"kind": finding.kind, "text": finding.text} for finding in findings]
            with writing(f"--json {options.json}"):
                write_json(options.json, info.plain() | {"findings": wrong})
        with writing(f"--out {options.out}"):
            save_figure(draw(info), options.out, DPI)
        console.print(f"\n{options.out}")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "augment.info", "Say what a data set holds, and what looks wrong.", _EXAMPLES, arguments="[key=value ...]"
    )
    parser.add_argument("--out", type=png_file, default=OUT, metavar="FILE.png", help=f"the drawing, default {OUT}")
    parser.add_argument("--json", type=output, metavar="FILE", help="write all figures, findings and names")
    return parser


if __name__ == "__main__":
    sys.exit(main())
