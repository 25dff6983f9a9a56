"""`python -m trainer predict RUN FILES_OR_FOLDERS...`: predict with a run's best model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from augment.cli.parser import (
    one_of,
    output,
    output_file,
    positive_number,
    readable_errors,
    table_console,
    whole_number,
    writing,
)
from augment.data.formats.coco import read_coco
from augment.support.files import write_atomically
from augment.support.formatting import amount, printable
from augment.support.untrusted_files import read_object, unlinked_folder
from trainer.loop.settings import TTA
from trainer.predictions.formats import as_csv, as_json
from trainer.predictions.predict import list_images, predict
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.run.config.schema import CONFIG_FILE
from trainer.run.folder.facts import IDS_FILE, Ids
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.run_names import RunParser
from trainer.tasks.display import NOTHING, Prediction
from trainer.tasks.segment import Segment

FAILED = 1  # exit code if some images cannot be used
STDOUT = "-"

_EXAMPLES = """\
  RUN cat.jpg photos/              images, and folders of images at any depth
  RUN photos/ --top 5 --csv FILE   a line for each image (- writes to the terminal)
  RUN photos/ --tta flip           average over each image and its mirror image
  RUN photos/ --overlay            also draw each prediction on its image
  RUN photos/ --out masks/         a mask for each image (segmentation models)
  RUN photos/ --explain maps/      a map of what the model looks at, for each image (needs captum)
  RUN photos/ fit.device=cpu fit.batch_size=256

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. Images that cannot be used are reported and
skipped. The exit code is then 1, or 2 if no image is left."""


def known_ids(trained: LoadedModel, annotations: Path | None) -> Ids:
    """Return the ids of a COCO file, or else the ids of the run's data.

    Raises:
        UserError: the file is not a COCO file.
    """
    if annotations is not None:
        return read_coco("--annotations", annotations).ids
    found: dict[str, Any] = RunFolder(trained.run).attempt(IDS_FILE, partial(read_object, folder=trained.run), {})
    return {name: of for name, of in found.items() if isinstance(of, dict)}


def _print(predictions: Sequence[Prediction], console: Console) -> None:
    good = [prediction for prediction in predictions if not prediction.error]
    columns = [name for name, _ in good[0].numbers]
    units = [] if columns else [next((one.unit for one in good if one.classes), "class")]
    table = Table("image", *units, *(Column(Text(name)) for name in columns))
    for prediction in good:
        cells = [f"{number:.4g}" for _, number in prediction.numbers]
        if not columns:
            shown = prediction.classes[: 20 if prediction.objects else None]  # there may be hundreds of objects
            more = [f"{left} more"] if (left := len(prediction.classes) - len(shown)) else []
            cells = [", ".join([*(f"{name} {share:.1%}" for name, share in shown), *more]) or NOTHING]
        # Text, because the console would read [words] as markup.
        table.add_row(Text(str(prediction.file), overflow="fold"), *map(Text, cells))
    console.print(table)
    if not columns and not any(prediction.classes for prediction in good):
        console.print(
            "Nothing reaches the threshold. Lower it with --threshold, or show the best guesses with --top 3. "
            "python -m trainer evaluate prints the thresholds with the best F1 score."
        )


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    parser = _make_parser()
    with readable_errors():
        options, paths, overrides = parser.split_paths(arguments)
        if (paths[0] / CONFIG_FILE).is_file():
            list_images(paths[1:])  # before the model, which takes seconds to load
        replaced = [token.lstrip("+") for token in overrides]
        trained = load_best_model(paths[0], replaced, tta=options.tta, trust=options.trust, data=False)
        ids = known_ids(trained, options.annotations)
        has_masks = isinstance(trained.task, Segment)
        folder = options.out
        if folder is None and (has_masks or options.overlay):
            folder = unlinked_folder(trained.run / ("masks" if has_masks else "overlays"))
        given = {name: getattr(options, name) for name in ("top", "threshold", "overlay", "explain")}
        predictions = predict(trained, paths[1:], out=folder, **given)
        _write(predictions, "--csv", options.csv, as_csv)
        _write(predictions, "--json", options.json, partial(as_json, ids=ids))
        files = [file for file in (options.csv, options.json) if file]
        if not files:
            _print(predictions, table_console())
        drawn = " and ".join(["masks"] * has_masks + ["overlays"] * options.overlay)
        _summarize(predictions, files, {drawn: folder, "explanations": options.explain})
    return FAILED if any(prediction.error for prediction in predictions) else 0


def _make_parser() -> RunParser:
    description = "Predict with the best model of a run."
    parser = RunParser("trainer predict", description, _EXAMPLES, arguments="RUN FILE_OR_FOLDER ... [key=value ...]")
    parser.add_argument("--top", type=whole_number(1), metavar="N",
                        help="number of classes, labels or objects per image, even below the threshold "
                        "(default: 3 classes)")  # fmt: skip
    parser.add_argument("--threshold", type=positive_number(1), metavar="P",
                        help="lowest probability of a label or object (default: the thresholds that the run chose for "
                        "its labels or classes on validation data, which evaluate prints, or 0.5)")  # fmt: skip
    parser.add_argument("--tta", type=one_of(*TTA), metavar="|".join(TTA),
                        help="views of each image to average (default: the run's setting)")  # fmt: skip
    parser.add_argument("--overlay", action="store_true",
                        help="also draw each prediction on its image: classes, masks, boxes or keypoints")  # fmt: skip
    parser.add_argument("--out", type=output, metavar="DIR",
                        help="folder for masks and overlays (default: RUN/masks or RUN/overlays)")  # fmt: skip
    parser.add_argument("--explain", type=Path, metavar="DIR",
                        help="folder for maps of what the model looks at (classification models)")  # fmt: skip
    parser.add_argument("--csv", type=output_file, metavar="FILE",
                        help="write CSV instead of a table (- writes to the terminal)")  # fmt: skip
    parser.add_argument("--json", type=output_file, metavar="FILE",
                        help="write JSON instead of a table (- writes to the terminal)")  # fmt: skip
    parser.add_argument("--annotations", type=Path, metavar="FILE",
                        help="COCO file with the ids for --json (default: ids of the run's data)")  # fmt: skip
    parser.add_trust_flag()
    return parser


def _write(
    predictions: Sequence[Prediction], flag: str, file: str | None, text: Callable[[Sequence[Prediction]], str]
) -> None:
    """Write predictions to the file of a flag, or to standard output."""
    if file == STDOUT:
        sys.stdout.write(printable(text(predictions)))
    elif file:
        with writing(f"{flag} {file}"):
            write_atomically(Path(file), text(predictions), follow=True)


def _summarize(predictions: Sequence[Prediction], files: Sequence[str], folders: Mapping[str, Path | None]) -> None:
    """Print what was written where, and which images cannot be used."""
    bad = [prediction for prediction in predictions if prediction.error]
    if files and STDOUT not in files:
        sys.stdout.write(printable(f"{amount(len(predictions) - len(bad), 'image')}; {', '.join(files)}\n"))
    # If CSV or JSON goes to standard output, a program may read it. Everything else then goes to standard error.
    stream = sys.stderr if STDOUT in files else sys.stdout
    for name, path in folders.items():
        if path is not None:
            stream.write(printable(f"{name}: {path}\n"))
    for prediction in bad:
        sys.stderr.write(printable(f"{prediction.file} {prediction.error}\n"))
    if bad:
        sys.stderr.write(f"error: {len(bad)} of {amount(len(predictions), 'image')} cannot be used.\n")
