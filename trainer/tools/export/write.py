"""Write a run's best model as ONNX, and compare it with PyTorch."""

import inspect
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table

from augment.cli.parser import table_console, writing
from augment.data.dataset import ImageRef
from augment.data.images import open_image, to_rgb
from augment.pipeline.serving.pillow import CROPS
from augment.pipeline.serving.transform_source import python_source, require_fixed
from augment.recipe.plan import build_plan
from augment.support.errors import UserError
from augment.support.files import installed_version, write_atomically, write_json
from augment.support.reading import check_folder
from augment.support.text import amount, list_some, plural
from trainer.run.trained import Trained, load_trained
from trainer.tasks.segment import Segment
from trainer.tools.evaluate import evaluated_split
from trainer.tools.export.check import Check, RunExport, compare
from trainer.tools.export.served import INPUT, Served, onnx_bytes, require_onnx

_FILE = "model.onnx"
_PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "pillow", "numpy")


def export(trained: Trained, folder: Path, *, inside: bool = True) -> RunExport:
    """Write a model as ONNX; return what runs it.

    Args:
        trained: the model.
        folder: the folder to write to; created if it is missing.
        inside: whether the model contains its preprocessing; otherwise transform.py does it.
    """
    if trained.task.own_loss:
        raise UserError(
            "export: this model predicts boxes. Allowed: models of classes, labels, numbers, masks or points."
        )
    plan = build_plan(trained.config.aug, "val")
    require_fixed(plan, forms=CROPS)
    require_onnx()
    served = Served(trained, plan if inside else None)
    metadata = {"classes": trained.classes, "outputs": served.outputs, "plan": str(plan)}
    model = onnx_bytes(served.export(), served, metadata)
    source = predict_source(inside=inside, masks=isinstance(trained.task, Segment))
    files: dict[str, bytes | str] = {_FILE: model, "predict.py": source}
    if not inside:
        files["transform.py"] = python_source(plan)
    with writing(f"--out {folder}"):
        for name, content in files.items():
            write_atomically(folder / name, content)
    if inside:
        return _runner(model, lambda image: _opened(image, lambda it: np.array(to_rgb(it))))
    transform = runpy.run_path(str(folder / "transform.py"))["transform"]
    return _runner(model, lambda image: _opened(image, transform))


def predict_source(*, inside: bool, masks: bool = False) -> str:
    """Return predict.py, which runs an exported model without this project."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = inspect.getsource(to_rgb) if inside else ""
    template = environment.get_template("predict.jinja")
    return template.render(file=_FILE, to_rgb=source, masks=masks).rstrip() + "\n"


def _opened(image: ImageRef, prepare: Callable[[Image.Image], NDArray[Any]]) -> NDArray[Any]:
    """Return an image as a batch of one."""
    with open_image(image) as opened:
        return prepare(opened)[None]


def _runner(model: bytes, prepare: Callable[[ImageRef], NDArray[Any]]) -> RunExport:
    """Return a function that runs an exported model on an image."""
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
    if count := len(check.differing):
        ones = f"{amount(count, 'image')} {plural(count, 'has', 'have')} another top class"
        lines.append(f"{ones}: {list_some(check.differing)}")
    elif trained.task.ranked:
        lines.append("all have the same top class")
    console.print("; ".join(lines), highlight=False, soft_wrap=True)
    with writing(f"--out {folder}"):
        write_json(folder / "export.json", {**facts, **vars(check)})


def export_run(options: Namespace, run: Path, images: Path | None, overrides: Sequence[str]) -> None:
    """Export as the command line asks, and print how the export compares."""
    check_folder(options.out or run)
    own = images is None and not options.unchecked
    # bfloat16 would differ by more than an export may.
    trained = load_trained(run, ["fit.precision=fp32", *overrides], trust=options.trust, data=own)
    split = None if options.unchecked else evaluated_split(trained, images)
    folder = options.out or run / "export-onnx"
    inside = options.preprocessing == "inside"
    runner = export(trained, folder, inside=inside)
    facts = {
        "to": "onnx",
        "preprocessing": options.preprocessing,
        "classes": trained.classes,
        "versions": {name: installed_version(name) for name in _PACKAGES},
    }
    if split is not None:
        _report(compare(trained, split, runner), trained, facts, folder)
    sys.stdout.write(f"{folder}\n")
