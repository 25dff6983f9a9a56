"""Source of predict.py, which runs an exported model without this project."""

import inspect

from augment.data.images import to_rgb

_SOURCE = '''\
"""Predict with {file}: `python predict.py IMAGE ...`. Requires only {packages}, Pillow and NumPy."""

# Written by `python -m trainer export`.

import json
import sys
from pathlib import Path

import numpy as np
{imports}

FILE = Path(__file__).with_name("{file}")
{load}


{function}
def predict(image):
    """Return the outputs for an opened image, by name."""
    {prepare}
    {run}


if __name__ == "__main__":
    failed = len(sys.argv) < 2
    if failed:
        print("usage: python predict.py IMAGE ...", file=sys.stderr)
    for file in sys.argv[1:]:
        try:
            with Image.open(file) as opened:
                values = predict(opened)[NAMES[-1]]
        except OSError as error:
            print(f"{{file}}: {{error}}", file=sys.stderr)
            failed = True
            continue
        found = list(zip(values.tolist(), CLASSES))
        if NAMES[-1] == "probabilities":
            found = sorted(found, reverse=True)[:3]
        print(file, *(f"{{name}} {{value:.4g}}" for value, name in found), sep="  ")
    sys.exit(2 if failed else 0)
'''

_ONNX = {
    "packages": "onnxruntime",
    "library": "import onnxruntime",
    "load": """\
SESSION = onnxruntime.InferenceSession(str(FILE))
CLASSES = json.loads(SESSION.get_modelmeta().custom_metadata_map["classes"])
NAMES = [output.name for output in SESSION.get_outputs()]""",
    "run": 'return dict(zip(NAMES, (values[0] for values in SESSION.run(None, {"images": images}))))',
}

_TORCH = {
    "packages": "PyTorch",
    "library": "import torch",
    "load": """\
EXTRA = {"metadata.json": ""}
MODEL = torch.export.load(FILE, extra_files=EXTRA).module()
CLASSES, NAMES = (json.loads(EXTRA["metadata.json"])[key] for key in ("classes", "outputs"))""",
    "run": """\
with torch.inference_mode():
        return dict(zip(NAMES, (values[0].numpy() for values in MODEL(torch.from_numpy(images)))))""",
}

_LIBRARIES = {"model.onnx": _ONNX, "model.pt2": _TORCH}


def predict_source(file: str, *, inside: bool) -> str:
    """Return the script for an exported file.

    Args:
        file: model.onnx or model.pt2.
        inside: whether the model preprocesses images itself; otherwise transform.py does.
    """
    library = _LIBRARIES[file]
    images = (
        ["from PIL import Image, ImageOps"] if inside else ["from PIL import Image", "from transform import transform"]
    )
    return _SOURCE.format(
        file=file,
        imports="\n".join(
            [library["library"], *images] if file == "model.onnx" else [*images[:1], library["library"], *images[1:]]
        ),
        function=f"{inspect.getsource(to_rgb)}\n" if inside else "",
        prepare="images = np.array(to_rgb(image))[None]" if inside else "images = transform(image)[None]",
        **{key: library[key] for key in ("packages", "load", "run")},
    )
