"""Export the validation transform for serving.

A model that is served with another transform than it was validated with loses accuracy: through another resize, a crop
that is off by a pixel, or an ignored EXIF orientation. The transform is therefore written for several servers:

    transform_cpu.dali, transform_gpu.dali   serialized DALI pipelines that take encoded images
    transform.py                             a function in Pillow and NumPy

These load without this project:

    pipeline = Pipeline.deserialize(filename="transform_gpu.dali", batch_size=64, device_id=0)
    (images,) = pipeline.run(encoded=[np.fromfile(file, np.uint8) for file in files])           # NCHW float32

    from transform import transform
    image = transform(PIL.Image.open(file))                                                     # CHW float32

`python -m trainer export RUN` exports a whole model.

The serialized pipelines consist of the operators of validation and are equal to it on the same device; CPU and GPU
decode JPEG differently. Pillow decodes as DALI does on the CPU; of the values halfway between two levels, some are
rounded to the other one.
"""

from collections.abc import Sequence
from pathlib import Path

from augment.cli.parser import Parser, output, readable_errors

OUT = Path("outputs/export")
_EXAMPLES = """\
  python -m augment export +aug=imagenette                     a recipe
  python -m augment export --run outputs/DATE/RUN --out DIR    the transform that a model was validated with
"""


def _parser() -> Parser:
    parser = Parser("augment export", __doc__, _EXAMPLES)
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="export the recipe of this run, with its model's mean and std"
    )
    parser.add_argument("--out", type=output, metavar="DIR", help=f"folder to write to (default: {OUT}/DIGEST)")
    parser.add_trust_flag()
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(arguments)
        from augment.tools.export.write import export_recipe  # PyTorch and DALI take seconds to import

        export_recipe(options, overrides, OUT)
    return 0
