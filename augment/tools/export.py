"""Export the validation transform for serving.

A served model loses accuracy if its transform differs from validation. A different resize, a crop that is off by a
pixel, or an ignored EXIF orientation is enough. So this tool writes the transform in three forms:

    transform_cpu.dali, transform_gpu.dali   serialized DALI pipelines that take encoded images
    transform.py                             a function in Pillow and NumPy

They load without dali-trainer:

    pipeline = Pipeline.deserialize(filename="transform_gpu.dali", batch_size=64, device_id=0)
    (images,) = pipeline.run(encoded=[np.fromfile(file, np.uint8) for file in files])           # NCHW float32

    from transform import transform
    image = transform(PIL.Image.open(file))                                                     # CHW float32

`python -m trainer export RUN` exports a whole model.

The serialized pipelines contain the operators of validation, so their output is identical on the same device. CPU and
GPU decode JPEGs differently. Pillow decodes like DALI on the CPU, but may round values halfway between two levels
differently.
"""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from augment.cli.compose import Recipe, compose_recipe
from augment.cli.overrides import normalize
from augment.cli.parser import Parser, output, readable_errors, writing
from augment.cli.trust import Saved
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug
from augment.support.console import print_plan, text_console
from augment.support.errors import UserError
from augment.support.files import require_in, write_atomically
from augment.support.untrusted_files import read_text
from augment.support.user_code import load_plugins
from augment.support.yaml_files import read_yaml

OUT = Path("outputs/export")
_EXAMPLES = """\
  python -m augment export aug=imagenette                      a recipe
  python -m augment export --run outputs/DATE/RUN --out DIR    the transform that a model was validated with
"""


def export(plan: Plan, folder: Path) -> None:
    """Write the validation transform to a folder, in all three forms."""
    # PyTorch and DALI take seconds to import.
    from augment.pipeline.serving.transform_source import python_source, serialize

    source = python_source(plan)
    with writing(f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "transform.py", source)
        write_atomically(folder / "transform_cpu.dali", serialize(plan, "cpu"))
        write_atomically(folder / "transform_gpu.dali", serialize(plan, "gpu"))


def _recipe(options: Namespace, overrides: Sequence[str]) -> Recipe:
    run = options.run
    if run is None:
        return compose_recipe(overrides)
    if others := [token for token in overrides if not token.lstrip("+").startswith(("plugins=", "aug.plugins="))]:
        raise UserError(f"--run {run} and {others[0]} cannot be combined. Remove one of them.")
    require_in(run, "config.yaml", key="--run ", allowed="the folder of a run")
    plans = read_text(run / "plan.txt", folder=run) if (run / "plan.txt").is_file() else ""
    if found := re.search(r"^val: .*, (\d+ channels? of \w+)$", plans, re.MULTILINE):
        from augment.pipeline.serving.transform_source import not_exported  # imports DALI, which is slow

        raise not_exported(found[1])
    file = run / "config.yaml"
    config = read_yaml(file, folder=run)
    if not isinstance(config, dict):
        raise UserError(f"{file} is not the configuration of a run. Pass the folder of a run.")
    saved = Saved(config, file, trust=options.trust, data=False, starts=False)
    plain = saved.with_overrides(normalize(overrides))
    load_plugins(tuple(plain.get("plugins") or ()), "plugins")  # they may declare ops
    aug = parse_aug(plain.get("aug"))
    if "auto" in (aug.mean, aug.std):
        raise UserError(
            f"--run {run}: aug.mean=auto and aug.std=auto are stored with the model. Run python -m trainer export "
            f"{run} --preprocessing beside, which also writes transform.py."
        )
    return Recipe(aug, 0, tuple(plain.get("plugins") or ()), plain)


def _parser() -> Parser:
    parser = Parser("augment export", __doc__, _EXAMPLES)
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="run whose transform to export, with its model's mean and std"
    )
    parser.add_argument("--out", type=output, metavar="DIR", help=f"output folder (default: {OUT}/DIGEST)")
    parser.add_trust_flag()
    return parser


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        options, overrides = _parser().split(arguments)
        recipe = _recipe(options, overrides)
        plan = build_plan(recipe.aug, "val")
        folder = options.out or OUT / plan.digest
        export(plan, folder)
        console = text_console()
        print_plan(console, str(plan))
        if options.run is None and recipe.aug.mean is None:
            console.print("Mean and std are from ImageNet. --run DIR uses the mean and std of a run's model.")
        console.print(f"Written to {folder}")
    return 0
