"""The texts that are written beside an exported model, from the templates in this folder."""

import inspect
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from augment.data.images import to_rgb
from augment.pipeline.graph import Device
from augment.pipeline.serving.serialized import BATCH_SIZE, THREADS
from augment.support.text import printable


def predict_source(file: str, *, inside: bool) -> str:
    """Return predict.py, which runs an exported model without this project.

    Args:
        file: model.onnx or model.pt2.
        inside: whether the model preprocesses images itself; otherwise transform.py does.
    """
    source = inspect.getsource(to_rgb) if inside else ""
    return _render("predict.jinja", file=file, torch=file == "model.pt2", to_rgb=source)


def repository(
    name: str, *, onnx: bytes, dali: bytes, device: Device, size: int, outputs: Sequence[str], classes: Sequence[str]
) -> dict[str, bytes | str]:
    """Return the files of a model repository of Triton, by their paths: DALI, the model, and both as an ensemble.

    Args:
        name: name of the ensemble, of letters, digits, _ and -.
        onnx: the model without its preprocessing.
        dali: the preprocessing, serialized.
        device: where both run.
        size: side of the model's input in pixels.
        outputs: names of the model's outputs; the ensemble returns the last one.
        classes: names of the K values of each output.
    """
    values = {"name": name, "device": device.upper(), "size": size, "names": outputs, "count": len(classes)}
    config = {
        part: _render("triton.jinja", part=part, batch=BATCH_SIZE, threads=THREADS, **values)
        for part in ("preprocessing", "model", "ensemble")
    }
    return {
        f"{name}_preprocessing/config.pbtxt": config["preprocessing"],
        f"{name}_preprocessing/1/model.dali": dali,
        f"{name}_model/config.pbtxt": config["model"],
        f"{name}_model/1/model.onnx": onnx,
        f"{name}/config.pbtxt": config["ensemble"],
        f"{name}/labels.txt": "".join(f"{' '.join(printable(label).splitlines())}\n" for label in classes),
        f"{name}/1/.keep": "",  # Triton asks for a folder, which version control would drop if it were empty
    }


def _render(template: str, **values: object) -> str:
    """Fill in a template; it is code, so nothing is escaped: values must not be strangers' texts."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(**values).rstrip() + "\n"
