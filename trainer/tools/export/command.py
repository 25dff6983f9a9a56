"""`python -m trainer export RUN`: export the best model of a run as ONNX, and compare it with PyTorch."""

from collections.abc import Sequence

from augment.cli.parser import one_of, output, readable_errors, whole_number
from augment.support.errors import UserError
from trainer.run.folder.run_names import RunParser
from trainer.tools.evaluate import run_and_images

PLACES = ("inside", "beside")
VARIANTS = ("torch", "fp16", "int8")
_EXAMPLES = """\
  RUN                             a model that takes images of any size
  RUN --preprocessing beside      a model that takes preprocessed images, and transform.py, which preprocesses them
  RUN --variants torch,fp16,int8  also a torch.export program, and smaller models
  RUN DIR                         compare on the images of DIR/<class>/* or DIR/val/<class>/*

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. The files are written to RUN/export-onnx or to
--out: model.onnx, predict.py, which runs the model without this project, and export.json with the comparison. With
--preprocessing inside, the model takes upright RGB images, (N, height, width, 3) uint8, or images with the channels and
the data type of the run. With --preprocessing beside, it takes (N, 3, height, width) float32, which transform.py
returns. The comparison runs the export with its own preprocessing and PyTorch in fp32 on every validation image."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Export the best model of a run as ONNX, and compare it with PyTorch on its validation data."
    parser = RunParser("trainer export", description, _EXAMPLES, arguments="RUN [DIR] [key=value ...]")
    parser.add_argument("--preprocessing", type=one_of(*PLACES), default="inside", metavar="|".join(PLACES),
                        help="whether the model contains its preprocessing (default: inside)")  # fmt: skip
    parser.add_argument("--variants", type=_variants, default=(), metavar="NAME,...",
                        help="additional files: torch (model.pt2 for torch.export.load), fp16 (model-fp16.onnx, half "
                        "the size), int8 (model-int8.onnx, quantized, a quarter of the size)")  # fmt: skip
    parser.add_argument("--calibrate", type=whole_number(10), metavar="N",
                        help="number of training images that define the ranges of int8 quantization "
                        "(default: 100)")  # fmt: skip
    parser.add_argument("--out", type=output, metavar="DIR", help="folder to write to (default: RUN/export-onnx)")
    parser.add_argument("--unchecked", action="store_true", help="skip the comparison, for example without images")
    parser.add_trust_flag()
    with readable_errors():
        options, run, images, overrides = run_and_images(parser, arguments)
        if options.unchecked and images:
            raise UserError(f"--unchecked skips the comparison, so {images} has no effect. Remove one of them.")
        from trainer.tools.export.comparison import export_run  # PyTorch and DALI take seconds to import

        export_run(options, run, images, overrides)
    return 0


def _variants(text: str) -> tuple[str, ...]:
    """Convert comma-separated names, as the `type` of a flag."""
    convert = one_of(*VARIANTS)
    return tuple(filter(None, map(convert, text.split(","))))
