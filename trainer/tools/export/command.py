"""Export a run's best model as ONNX, and compare the export with PyTorch on the validation data."""

from collections.abc import Sequence

from augment.cli.parser import one_of, output, readable_errors, whole_number
from augment.support.errors import UserError
from trainer.run.folder.run_names import RunParser
from trainer.tools.evaluate import run_and_images

PLACES = ("inside", "beside")
VARIANTS = ("torch", "fp16", "int8")
_EXAMPLES = """\
  RUN                            writes model.onnx, which takes images of any size as they are stored
  RUN --preprocessing beside     writes model.onnx, which takes preprocessed images, and transform.py
  RUN --variants torch,fp16,int8  also writes a torch.export program, and smaller models
  RUN DIR                        compares on the images of DIR/<class>/* or DIR/val/<class>/*

RUN is the folder of a run, or last, best, SWEEP:last or SWEEP:best. Files are written to RUN/export-onnx or to --out:
the model, predict.py, which runs it without this project, and export.json with the comparison. With --preprocessing
inside, the model takes upright RGB images, (N, height, width, 3) uint8, or images with the channels and the data type
of the run. With beside, it takes (N, 3, height, width) float32 from transform.py. For the comparison, every validation
image goes through the export with its own preprocessing, and through PyTorch in fp32."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    description = "Export the best model of a run as ONNX, and compare it with PyTorch on its validation data."
    parser = RunParser("trainer export", description, _EXAMPLES, arguments="RUN [DIR] [key=value ...]")
    parser.add_argument("--preprocessing", type=one_of(*PLACES), default="inside", metavar="|".join(PLACES),
                        help="whether the model contains its preprocessing (default: inside)")  # fmt: skip
    parser.add_argument("--variants", type=_variants, default=(), metavar="NAME,...",
                        help="also write these: torch (model.pt2 for torch.export.load), fp16 (model-fp16.onnx, half "
                        "the size), int8 (model-int8.onnx, a quarter of the size)")  # fmt: skip
    parser.add_argument("--calibrate", type=whole_number(10), metavar="N",
                        help="number of training images that define the ranges of int8 (default: 100)")  # fmt: skip
    parser.add_argument("--out", type=output, metavar="DIR", help="folder to write to (default: RUN/export-onnx)")
    parser.add_argument("--unchecked", action="store_true", help="skip the comparison, for example without images")
    parser.add_trust_flag()
    with readable_errors():
        options, run, images, overrides = run_and_images(parser, arguments)
        if options.unchecked and images:
            raise UserError(f"{images}: images are not used with --unchecked. Remove one of them.")
        from trainer.tools.export.comparison import export_run  # PyTorch and DALI take seconds to import

        export_run(options, run, images, overrides)
    return 0


def _variants(text: str) -> tuple[str, ...]:
    """Convert names that are separated by commas, as a flag's `type`."""
    convert = one_of(*VARIANTS)
    return tuple(filter(None, map(convert, text.split(","))))
