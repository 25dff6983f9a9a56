"""`python -m trainer predict RUN FILES_OR_FOLDERS...`: predict with a run's best model."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from augment.cli.parser import Parser, one_of, positive_number, readable_errors, table_console, whole_number, writing
from augment.data.formats.coco import read_coco
from augment.support.files import write_atomically
from augment.support.formatting import amount, printable
from augment.support.untrusted_files import own_folder, read_object
from trainer.loop.settings import TTA
from trainer.predictions.formats import as_csv, as_json
from trainer.predictions.predict import Prediction, predict
from trainer.run.best_model import Trained, load_trained
from trainer.run.folder.coco_ids import IDS_FILE, Ids
from trainer.run.folder.reader import RunFolder
from trainer.tasks.segment import Segment

FAILED = 1  # exit code if some of the images cannot be used
STDOUT = "-"

_EXAMPLES = """\
  RUN cat.jpg photos/              images, and folders of images at any depth
  RUN photos/ --top 5 --csv FILE   a line for each image; - writes to the terminal
  RUN photos/ --tta flip           averaged over each image and its mirror image
  RUN photos/ --out masks/ --overlay  a mask for each image, of a model of masks
  RUN photos/ --explain maps/      where the model looks in each image; needs captum
  RUN photos/ fit.device=cpu fit.batch_size=256

RUN is the folder of a run. Images that cannot be used are reported and skipped; the exit code is then 1, and 2 if none
is left."""


def known_ids(trained: Trained, annotations: Path | None) -> Ids:
    """Return the ids of a COCO file, or those that the run was trained with.

    Raises:
        UserError: the file is none.
    """
    if annotations is not None:
        return read_coco("--annotations", annotations).ids
    found: dict[str, Any] = RunFolder(trained.run).attempt(IDS_FILE, partial(read_object, folder=trained.run), {})
    return {name: of for name, of in found.items() if isinstance(of, dict)}


def _print(predictions: Sequence[Prediction], console: Console) -> None:
    numbers = next(([name for name, _ in p.numbers] for p in predictions if p.numbers), [])
    unit = [] if numbers else [next((p.unit for p in predictions if p.classes), "class")]
    table = Table("image", *unit, *(Column(Text(name)) for name in numbers))
    for prediction in predictions:
        cells = [", ".join(f"{name} {share:.1%}" for name, share in prediction.classes)] if unit else []
        cells += [f"{number:.4g}" for _, number in prediction.numbers]
        if not prediction.error:  # Text, as the console would read [words] as markup
            table.add_row(Text(str(prediction.file), overflow="fold"), *map(Text, cells))
    console.print(table)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    description = "Predict with the best model of a run."
    parser = Parser("trainer predict", description, _EXAMPLES, arguments="RUN FILE_OR_FOLDER ... [key=value ...]")
    parser.add_argument("--top", type=whole_number(1), metavar="N", help="number of classes to name (default: 3)")
    parser.add_argument("--threshold", type=positive_number(1), metavar="P",
                        help="name the labels of at least this probability (default: 0.5)")  # fmt: skip
    parser.add_argument("--tta", type=one_of(*TTA), metavar="|".join(TTA),
                        help="views of each image to average (default: those of the run)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the masks (default: RUN/masks)")
    parser.add_argument("--overlay", action="store_true", help="also write the images with their masks drawn on them")
    parser.add_argument("--explain", type=Path, metavar="DIR", help="write where the model looks in each image")
    parser.add_argument("--csv", metavar="FILE", help="write CSV in place of a table; - writes to the terminal")
    parser.add_argument("--json", metavar="FILE", help="write JSON in place of a table; - writes to the terminal")
    parser.add_argument("--annotations", type=Path, metavar="FILE",
                        help="COCO file whose image and category ids --json takes (default: the run's)")  # fmt: skip
    parser.add_trust_flag()
    with readable_errors():
        options, paths, overrides = parser.split_paths(arguments)
        replaced = [token.lstrip("+") for token in overrides]
        trained = load_trained(paths[0], replaced, tta=options.tta, trust=options.trust, data=False)
        ids = known_ids(trained, options.annotations)
        masks = options.out or (own_folder(trained.run / "masks") if isinstance(trained.task, Segment) else None)
        given = {name: getattr(options, name) for name in ("top", "threshold", "overlay", "explain")}
        predictions = predict(trained, paths[1:], out=masks, **given)
        bad = [prediction for prediction in predictions if prediction.error]
        for flag, file, text in (
            ("--csv", options.csv, as_csv),
            ("--json", options.json, partial(as_json, ids=ids)),
        ):
            if file == STDOUT:
                sys.stdout.write(printable(text(predictions)))
            elif file:
                with writing(f"{flag} {file}"):
                    write_atomically(Path(file), text(predictions), follow=True)
        if not options.csv and not options.json:
            _print(predictions, table_console())
        elif STDOUT not in (options.csv, options.json):
            files = ", ".join(filter(None, (options.csv, options.json)))
            sys.stdout.write(printable(f"{amount(len(predictions) - len(bad), 'image')}; {files}\n"))
        written = {
            "masks and overlays" if options.overlay else "masks": masks,
            "explanations": options.explain,
        }
        for what, folder in written.items():
            if folder is not None:  # next to what goes to the terminal, where a program may read that
                stream = sys.stderr if STDOUT in (options.csv, options.json) else sys.stdout
                stream.write(printable(f"{what}: {folder}\n"))
        for prediction in bad:
            sys.stderr.write(printable(f"{prediction.file} {prediction.error}\n"))
        if bad:
            sys.stderr.write(f"error: {len(bad)} of {amount(len(predictions), 'image')} cannot be used.\n")
    return FAILED if bad else 0
