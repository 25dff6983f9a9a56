"""A model repository of NVIDIA Triton: preprocessing in DALI, the model in ONNX, and both as an ensemble."""

from collections.abc import Sequence

from augment.pipeline.graph import Device
from augment.pipeline.serving.serialized import BATCH_SIZE, ENCODED, THREADS
from augment.support.text import printable
from trainer.tools.export.served import INPUT

LABELS_FILE = "labels.txt"

_PREPROCESSING = """\
# Decodes and preprocesses images as validation does: a serialized pipeline of DALI.
name: "{name}_preprocessing"
backend: "dali"
max_batch_size: {batch}
input [ {{ name: "{encoded}", data_type: TYPE_UINT8, dims: [ -1 ] }} ]
output [ {{ name: "{images}", data_type: TYPE_FP32, dims: [ 3, {size}, {size} ] }} ]
instance_group [ {{ kind: {kind} }} ]
parameters [ {{ key: "num_threads", value: {{ string_value: "{threads}" }} }} ]
"""

_MODEL = """\
# The model, of preprocessed images.
name: "{name}_model"
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "{images}", data_type: TYPE_FP32, dims: [ 3, {size}, {size} ] }} ]
{outputs}
instance_group [ {{ kind: {kind} }} ]
dynamic_batching {{ }}
"""

_ENSEMBLE = """\
# Encoded images in, {last} out. Triton wants inputs of one length in a batch: pad shorter files with zeros.
name: "{name}"
platform: "ensemble"
max_batch_size: {batch}
input [ {{ name: "{encoded}", data_type: TYPE_UINT8, dims: [ -1 ] }} ]
{output}
ensemble_scheduling {{
  step [
    {{
      model_name: "{name}_preprocessing"
      model_version: -1
      input_map {{ key: "{encoded}", value: "{encoded}" }}
      output_map {{ key: "{images}", value: "preprocessed" }}
    }},
    {{
      model_name: "{name}_model"
      model_version: -1
      input_map {{ key: "{images}", value: "preprocessed" }}
      output_map {{ key: "{last}", value: "{last}" }}
    }}
  ]
}}
"""


def repository(
    name: str, *, onnx: bytes, dali: bytes, device: Device, size: int, outputs: Sequence[str], classes: Sequence[str]
) -> dict[str, bytes | str]:
    """Return the files of a model repository, by their paths.

    Args:
        name: name of the ensemble, of letters, digits, _ and -.
        onnx: the model without its preprocessing.
        dali: the preprocessing, serialized.
        device: where both run.
        size: side of the model's input in pixels.
        outputs: names of the model's outputs; the ensemble returns the last one.
        classes: names of the K values of each output.
    """
    values = {
        "name": name, "encoded": ENCODED, "images": INPUT, "size": size, "batch": BATCH_SIZE, "threads": THREADS,
        "kind": "KIND_GPU" if device == "gpu" else "KIND_CPU", "last": outputs[-1],
        "outputs": "\n".join(_output(output, len(classes)) for output in outputs),
        "output": _output(outputs[-1], len(classes), labels=LABELS_FILE),
    }  # fmt: skip
    return {
        f"{name}_preprocessing/config.pbtxt": _PREPROCESSING.format(**values),
        f"{name}_preprocessing/1/model.dali": dali,
        f"{name}_model/config.pbtxt": _MODEL.format(**values),
        f"{name}_model/1/model.onnx": onnx,
        f"{name}/config.pbtxt": _ENSEMBLE.format(**values),
        f"{name}/{LABELS_FILE}": "".join(f"{' '.join(printable(label).splitlines())}\n" for label in classes),
        f"{name}/1/.keep": "",  # Triton asks for a folder, which version control would drop if it were empty
    }


def _output(name: str, count: int, labels: str = "") -> str:
    of = f', label_filename: "{labels}"' if labels else ""
    return f'output [ {{ name: "{name}", data_type: TYPE_FP32, dims: [ {count} ]{of} }} ]'
