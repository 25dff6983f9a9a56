"""Export a run's best model for serving, with its preprocessing, and compare it with PyTorch on the validation data."""

import json
import re
import runpy
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table

from augment.cli.parser import USAGE, Parser, one_of, output, readable_errors, table_console, whole_number, writing
from augment.cli.trust import add_trust_flag
from augment.data.dataset import ImageRef, Split
from augment.data.images import open_image, read_encoded, to_rgb
from augment.pipeline.graph import Device
from augment.pipeline.serving.pillow import CROPS
from augment.pipeline.serving.serialized import deserialize, serialize
from augment.pipeline.serving.transform_source import python_source, require_fixed
from augment.recipe.plan import build_plan
from augment.support.errors import UserError
from augment.support.files import installed_version, no_link, write_atomically
from augment.support.text import amount, list_some, printable
from trainer.run.trained import Trained, load_trained
from trainer.tools.evaluate import evaluated_split, run_and_images
from trainer.tools.export.check import Check, Run, compare
from trainer.tools.export.script import predict_source
from trainer.tools.export.served import INPUT, Served, onnx_bytes, require_onnx, torch_bytes
from trainer.tools.export.triton import repository

FORMS = ("onnx", "torch", "triton")
PLACES = ("inside", "beside")
_FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "nvidia-dali-cuda120", "pillow", "numpy")

_EXAMPLES = """\
  RUN --to onnx                           model.onnx, which takes images of any size, uint8 RGB
  RUN --to onnx --preprocessing beside    model.onnx, which takes preprocessed images, and transform.py
  RUN --to torch                          model.pt2, for torch.export.load
  RUN --to triton --name flowers          a model repository: DALI, the model in ONNX, and both as an ensemble
  RUN DIR --to onnx                       compared on the images of DIR/<class>/* or DIR/val/<class>/*

RUN is the folder of a run. Files are written to RUN/export-onnx and so on, or to --out: the model, predict.py, which
runs it without this project, and export.json with the comparison. With --preprocessing inside, the model takes images
as (N, height, width, 3) uint8, upright and in RGB; with beside, as (N, 3, size, size) float32 that transform.py makes.
The comparison runs the export, with its own preprocessing, on every validation image, and PyTorch in fp32 as evaluate
does."""


def export(
    trained: Trained, form: str, folder: Path, *, inside: bool = True, device: Device = "gpu", name: str = "model"
) -> Run:
    """Write a model in one form; return what runs it.

    Args:
        trained: the model.
        form: one of `FORMS`.
        folder: the folder to write to; created if it is missing.
        inside: whether the model contains its preprocessing; without meaning for triton.
        device: where Triton runs the model.
        name: name of Triton's ensemble.

    Raises:
        UserError: the model or its preprocessing cannot be exported, or the files cannot be written.
    """
    plan = build_plan(trained.config.aug, "val")
    require_fixed(plan, forms=CROPS)
    if form != "torch":
        require_onnx()
    inside = inside and form != "triton"
    served = Served(trained, plan if inside else None)
    program = served.export()
    metadata = {"classes": trained.classes, "outputs": served.outputs, "plan": str(plan)}
    model = torch_bytes(program, metadata) if form == "torch" else onnx_bytes(program, served, metadata)
    files: dict[str, bytes | str]
    if form == "triton":
        files = repository(
            name, onnx=model, dali=serialize(plan, device), device=device, size=plan.size,
            outputs=served.outputs, classes=trained.classes,
        )  # fmt: skip
    else:
        files = {_FILES[form]: model, "predict.py": predict_source(_FILES[form], inside=inside)}
        if not inside:
            files["transform.py"] = python_source(plan)
    _write(folder, files)
    if form == "triton":
        preprocess = deserialize(serialize(plan, "cpu"), "cpu", 1)  # where there may be no GPU
        return _runner(form, model, lambda image: preprocess([read_encoded(image)]))
    if inside:
        return _runner(form, model, lambda image: _opened(image, lambda it: np.array(to_rgb(it))))
    transform = runpy.run_path(str(folder / "transform.py"))["transform"]
    return _runner(form, model, lambda image: _opened(image, transform))


def _write(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files into a folder that may be in that of a stranger: nothing is written through links."""
    with writing(f"--out {folder}"):
        for name, content in files.items():
            inner = [folder, *(folder / part for part in reversed(Path(name).parents[:-1]))]
            if link := next((path for path in inner if path.is_symlink()), None):
                raise UserError(f"--out {folder}: {link} is a link. Allowed: a folder.")
            inner[-1].mkdir(parents=True, exist_ok=True)
            write_atomically(no_link(folder / name), content)


def _opened(image: ImageRef, prepare: Callable[[Image.Image], NDArray[Any]]) -> NDArray[Any]:
    """Return an image as a batch of one."""
    with open_image(image) as opened:
        return prepare(opened)[None]


def _runner(form: str, model: bytes, prepare: Callable[[ImageRef], NDArray[Any]]) -> Run:
    """Return a function that runs an exported model on an image."""
    if form == "torch":
        loaded = torch.export.load(BytesIO(model)).module()

        def run(image: ImageRef) -> list[NDArray[np.float32]]:
            with torch.inference_mode():
                return [values[0].numpy() for values in loaded(torch.from_numpy(prepare(image)))]

        return run
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda image: [values[0] for values in session.run(None, {INPUT: prepare(image)})]


def _report(check: Check, trained: Trained, facts: Mapping[str, object], folder: Path) -> None:
    """Print the comparison and write it as export.json."""
    console = table_console()
    table = Table("", "PyTorch", "the export")
    for key, value in check.pytorch.items():
        table.add_row(key, f"{value:.4f}", f"{check.exported[key]:.4f}")
    console.print(table)
    what = "probability" if trained.task.ranked else "number"
    lines = [f"{amount(check.images, 'image')}: the largest difference of a {what} is {check.largest:.2g}"]
    if check.differing:
        ones = f"{amount(len(check.differing), 'image')} have another first class"
        lines.append(f"{ones}, with a lead of at most {check.margin:.2g}: {list_some(check.differing)}")
    elif trained.task.ranked:
        lines.append("all have the same first class")
    console.print("; ".join(map(printable, lines)), highlight=False, soft_wrap=True)
    _write(folder, {"export.json": _json({**facts, **vars(check)})})


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", text):
        raise ArgumentTypeError(f"'{text}' is not allowed. Allowed: letters, digits, _ and -")
    return text


def _parser() -> Parser:
    description = "Export the best model of a run for serving, and compare it with PyTorch on its validation data."
    parser = Parser("trainer export", description, _EXAMPLES, arguments="RUN [DIR] --to FORM [key=value ...]")
    parser.add_argument("--to", type=one_of(*FORMS), required=True, metavar="|".join(FORMS), help="what to write")
    parser.add_argument("--preprocessing", type=one_of(*PLACES), default="inside", metavar="|".join(PLACES),
                        help="whether onnx and torch contain the preprocessing (default: inside)")  # fmt: skip
    parser.add_argument("--device", type=one_of("gpu", "cpu"), default="gpu", metavar="gpu|cpu",
                        help="where triton decodes images and runs the model (default: gpu)")  # fmt: skip
    parser.add_argument("--name", type=_name, default="model", help="name of triton's ensemble (default: model)")
    parser.add_argument("--out", type=output, metavar="DIR", help="folder to write to (default: RUN/export-FORM)")
    parser.add_argument("--limit", type=whole_number(1), metavar="N", help="compare on at most N images (default: all)")
    parser.add_argument("--unchecked", action="store_true", help="write without comparing, where there are no images")
    add_trust_flag(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with readable_errors():
        parser = _parser()
        if not given:
            parser.print_help()
            return USAGE
        _export(*run_and_images(parser, given))
    return 0


def _export(options: Namespace, run: Path, images: Path | None, overrides: Sequence[str]) -> None:
    own = images is None and not options.unchecked
    # bfloat16 would differ by more than an export may.
    trained = load_trained(run, ["fit.precision=fp32", *overrides], trust=options.trust, data=own)
    split = None if options.unchecked else _limited(evaluated_split(trained, images), options.limit)
    folder = options.out or run / f"export-{options.to}"
    inside = options.preprocessing == "inside"
    runner = export(trained, options.to, folder, inside=inside, device=options.device, name=options.name)
    facts = {
        "to": options.to,
        "preprocessing": options.preprocessing if options.to != "triton" else "DALI",
        "classes": trained.classes,
        "versions": {name: installed_version(name) for name in _PACKAGES},
    }
    if split is not None:
        _report(compare(trained, split, runner), trained, facts, folder)
    sys.stdout.write(f"{folder}\n")


def _limited(split: Split, limit: int | None) -> Split:
    """Return at most some images of a split, spread evenly."""
    count = len(split.files)
    if limit is None or limit >= count:
        return split
    chosen = [(2 * i + 1) * count // (2 * limit) for i in range(limit)]
    return Split(tuple(split.files[i] for i in chosen), tuple(split.targets[i] for i in chosen))
