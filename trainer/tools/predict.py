"""`python -m trainer predict RUN FILES_OR_FOLDERS...`: predict with a run's best model."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from augment.cli.parser import Parser, one_of, positive_number, readable_errors, table_console, whole_number, writing
from augment.data.check import check_files
from augment.data.dataset import Split
from augment.data.formats.coco import read_coco
from augment.data.formats.folder import find_images
from augment.data.images import name_of, open_image
from augment.support.errors import UserError, missing_package
from augment.support.files import near_file, write_atomically
from augment.support.formatting import amount, printable, table_cell
from augment.support.untrusted_files import read_object
from trainer.loop.callback import Callback
from trainer.loop.settings import TTA
from trainer.predictions.masks import MaskWriter, mask_files, upright
from trainer.predictions.objects import FoundObjects, as_coco, as_rows
from trainer.run.best_model import KeptOutputs, Trained, load_trained
from trainer.run.folder.coco_ids import IDS_FILE, Ids
from trainer.run.folder.reader import RunFolder
from trainer.tasks.classify import Classify
from trainer.tasks.detect import Detect
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


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for an image."""

    file: Path
    # The most probable classes, or the labels, with their probabilities, in [0, 1], the highest first
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""  # why the image cannot be used; then there is no prediction
    numbers: tuple[tuple[str, float], ...] = ()  # a value for each name, where the task predicts numbers
    unit: str = "class"  # what the classes are, "class" or "label"
    # The objects that were found, where the task is to find some; then `classes` has the class of each
    objects: FoundObjects | None = None
    # The file with the label of each pixel, where these are predicted; then `classes` have their shares of the pixels
    mask: Path | None = None


def predict(
    trained: Trained,
    files: Sequence[Path],
    *,
    top: int | None = None,
    threshold: float | None = None,
    out: Path | None = None,
    overlay: bool = False,
    explain: Path | None = None,
) -> list[Prediction]:
    """Predict with the best model of a run; images are prepared exactly as in validation.

    Args:
        trained: the model.
        files: images, and folders that are searched for images at any depth.
        top: number of classes or labels to name for each image; None: 3 classes, or the labels above the threshold.
        threshold: probability from which a label is predicted; None: 0.5.
        out: where masks are written, see `trainer.predictions.masks`; None: RUN/masks.
        overlay: whether to write images with their masks drawn on them, too.
        explain: where to write images with what the model looks at drawn on them; None: nowhere.

    Returns:
        A prediction for each image in the order of `files`, those of a folder sorted by path.

    Raises:
        UserError: no such file, a folder without images, or no image that can be used.
    """
    task, images = trained.task, list_images(files)
    for flag, given, fits, allowed in (
        ("--threshold", threshold is not None, task.threshold is not None, "labels or boxes"),
        ("--top", top is not None, task.ranked, "classes, labels, masks or boxes"),
        ("--out, --overlay", out is not None or overlay, isinstance(task, Segment), "masks"),
        ("--explain", explain is not None, isinstance(task, Classify), "classes"),
    ):
        if given and not fits:
            raise UserError(f"{flag}: this model predicts {task.kind.units}. Allowed: with models of {allowed}.")
    if explain is not None and not find_spec("captum"):
        raise missing_package("--explain", "captum", "explain")
    folder = _masks_of(trained, out)
    masks = None if folder is None else mask_files(images, files, folder)
    maps = {} if explain is None else mask_files(images, files, explain, "--explain")
    problems = check_files(images)
    good = tuple(image for image in images if image not in problems)
    if not good:
        file, reason = next(iter(problems.items()))
        none = (
            "the image cannot be used" if len(images) == 1 else f"none of {len(images)} images can be used; the first"
        )
        raise UserError(f"{none}: {name_of(file)} {reason}")
    # The loader needs targets, but nothing reads them.
    split = Split(good, (task.kind.blank(len(trained.classes)),) * len(good), task.kind)
    if masks is None:
        from trainer.predictions.activation_maps import MapWriter  # imports PyTorch

        writers = [MapWriter([maps[file] for file in good])] if maps else []
        predicted = iter(_predict(trained, good, split, top, threshold, *writers))
    else:
        predicted = iter(_predict_masks(trained, good, split, masks, out or trained.run, top, overlay=overlay))
    return [Prediction(image, error=problems[image]) if image in problems else next(predicted) for image in images]


def _masks_of(trained: Trained, out: Path | None) -> Path | None:
    """Return the folder of the masks; None: the model predicts none."""
    return out or trained.run / "masks" if isinstance(trained.task, Segment) else None


def list_images(paths: Sequence[Path]) -> list[Path]:
    """Return the given files, and in place of each folder the images in it, in order.

    Raises:
        UserError: a path does not exist, or is a folder without images; or there are none at all.
    """
    images: list[Path] = []
    for path in paths:
        # Images of other formats are listed, too, with the reason why they have no prediction.
        found = find_images(path, with_foreign=True) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: holds no images.")
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder.{near_file(path)}")
        images += found
    if not images:
        raise UserError("no images are given. Allowed: files, and folders that hold images.")
    return images


def _predict(
    trained: Trained,
    files: Sequence[Path],
    split: Split,
    top: int | None,
    threshold: float | None,
    *writers: Callback,
) -> list[Prediction]:
    names, task, kept = trained.classes, trained.task, KeptOutputs()
    with writing("--explain"):
        trained.run_over(split, kept, *writers, description="predicting")
    outputs, *frames = kept.in_order()
    outputs, sizes = outputs.float(), []
    lowest = threshold if threshold is not None else (task.threshold if top is None else None) or 0.0
    for number, file in enumerate(files if frames else ()):
        with open_image(file) as image:
            turn, size = upright(image)
        frames[0][number] @= turn
        sizes.append(size)
    if isinstance(task, Detect):
        found = []
        for file, output, frame, size in zip(files, outputs, *frames, sizes, strict=True):
            objects = tuple(of for of in task.objects(output, frame, size, names) if of.score >= lowest)[:top]
            classes = tuple((of.name, of.score) for of in objects)
            found.append(Prediction(file, classes, objects=FoundObjects(objects, size, names)))
        return found
    if not task.ranked:
        columns, values = task.numbers(outputs, frames[0] if frames else None, names)
        return [
            Prediction(file, numbers=tuple(zip(columns, numbers, strict=True)))
            for file, numbers in zip(files, values.tolist(), strict=True)
        ]
    values = task.activate(outputs)
    highest = values.topk(min(top or task.top or len(names), len(names)), dim=1)
    return [
        Prediction(file, tuple((names[unit], share) for unit, share in pairs if share >= lowest), unit=task.unit)
        for file, pairs in zip(files, map(zip, highest.indices.tolist(), highest.values.tolist()), strict=True)
    ]


def _predict_masks(
    trained: Trained,
    files: Sequence[Path],
    split: Split,
    masks: Mapping[Path, Path],
    folder: Path,
    top: int | None,
    *,
    overlay: bool,
) -> list[Prediction]:
    names, task, found = trained.classes, trained.task, []
    writer = MaskWriter(files, [masks[file] for file in files], names, folder, overlay=overlay)
    with writing("--out"):
        trained.run_over(split, writer, description="predicting")
    for number, file in enumerate(files):
        shares = writer.shares[number]
        largest = (-shares).argsort(kind="stable")[: top or task.top].tolist()
        classes = tuple((names[unit], float(shares[unit])) for unit in largest if shares[unit])
        found.append(Prediction(file, classes, unit=task.unit, mask=masks[file]))
    if most := max(writer.unseen.values()):
        sys.stderr.write(f"warning: aug.val crops: up to {most:.0%} of an image have no prediction, 255 in its mask.\n")
    return found


def known_ids(trained: Trained, annotations: Path | None) -> Ids:
    """Return the ids of a COCO file, or those that the run was trained with.

    Raises:
        UserError: the file is none.
    """
    if annotations is not None:
        return read_coco("--annotations", annotations).ids
    found: dict[str, Any] = RunFolder(trained.run).attempt(IDS_FILE, partial(read_object, folder=trained.run), {})
    return {name: of for name, of in found.items() if isinstance(of, dict)}


def as_json(predictions: Sequence[Prediction], ids: Ids | None = None) -> str:
    """Write predictions as JSON, `[{"file": ..., "classes": [{"class": ..., "probability": ...}]}]`.

    Where numbers are predicted it is `[{"file": ..., "numbers": {name: ...}}]`; where masks are, classes have shares of
    the pixels, and "mask" is their file; of objects, see `as_coco`.
    """
    if objects := [(prediction.file, prediction.objects) for prediction in predictions if prediction.objects]:
        return as_coco(objects, ids)
    rows: list[dict[str, Any]] = []
    for prediction in predictions:
        key, mask = ("share", {"mask": str(prediction.mask)}) if prediction.mask else ("probability", {})
        classes = [{"class": name, key: share} for name, share in prediction.classes]
        found = {"numbers": dict(prediction.numbers)} if prediction.numbers else {**mask, "classes": classes}
        rows.append({"file": str(prediction.file)} | ({"error": prediction.error} if prediction.error else found))
    return json.dumps(rows, indent=2) + "\n"


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Write predictions as CSV: file, error, class_1, probability_1, class_2, ...; or file, error and the numbers.

    Of masks it is file, error, class_1, share_1, ...; of objects, see `as_rows`.

    Names that a spreadsheet would run as formulas get an apostrophe, see `augment.support.formatting.table_cell`.
    """
    if any(prediction.objects for prediction in predictions):
        return as_rows([(prediction.file, prediction.error, prediction.objects) for prediction in predictions])
    rows = [_cells(prediction) for prediction in predictions]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "error", *max(rows, key=len)])
    for prediction, cells in zip(predictions, rows, strict=True):
        writer.writerow([table_cell(prediction.file), table_cell(prediction.error), *cells.values()])
    return text.getvalue()


def _cells(prediction: Prediction) -> dict[str, str]:
    """Return the cells of a prediction by the names of their columns."""
    share = "share" if prediction.mask else "probability"
    cells: dict[str, str] = {}
    for rank, (name, value) in enumerate(prediction.classes, 1):
        cells |= {f"class_{rank}": table_cell(name), f"{share}_{rank}": f"{value:.6g}"}
    return cells | {table_cell(name): f"{value:.6g}" for name, value in prediction.numbers}


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
        given = {name: getattr(options, name) for name in ("top", "threshold", "out", "overlay", "explain")}
        predictions = predict(trained, paths[1:], **given)
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
            sys.stdout.write(f"{amount(len(predictions) - len(bad), 'image')}; {files}\n")
        written = {
            "masks and overlays" if options.overlay else "masks": _masks_of(trained, options.out),
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
