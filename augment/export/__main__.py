"""Export the validation transform for serving: `python -m augment.export +aug=NAME [key=value ...]`.

A model that is served with another transform than it was validated with loses points: another resize, another crop by a
pixel, EXIF rotation left out. So the transform is written out once, for several servers:

    transform_cpu.dali, transform_gpu.dali   serialized DALI pipelines, fed with encoded pictures
    transform.py                             a function of Pillow and NumPy
    transform_torchvision.py                 a torchvision Compose: near, and not the same
    parity.json, parity.png                  how far each is from validation, measured

and loaded without this project:

    gpu = {"device_id": 0, "exec_dynamic": True, "exec_pipelined": True, "exec_async": True}    # CPU: none of these
    pipeline = Pipeline.deserialize(filename="transform_gpu.dali", batch_size=64, **gpu)
    (images,) = pipeline.run(encoded=[np.fromfile(file, np.uint8) for file in files])           # NCHW float32

    from transform import transform
    image = transform(PIL.Image.open(file))                                                     # CHW float32

Where they differ: the serialized pipelines have validation's own operators, so each is equal to validation on the same
device; CPU and GPU decode JPEG differently. Pillow decodes as DALI does on the CPU, and rounds to whole levels between
the two passes of a resize: one level apart here and there. The Compose cuts at whole pixels, and Pillow's filter ends
at the edge of the picture, where DALI repeats the edge.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from augment.check import check_files
from augment.command import Parser, output, readable_errors, writing
from augment.compose import Recipe, compose_recipe, plain_values
from augment.config import parse_aug
from augment.dataset import Picture
from augment.errors import UserError
from augment.export.parity import Parity, dali_form, draw_parity, parity, parity_table, pillow_form
from augment.export.pillow import CROPS
from augment.export.transform_source import has_compose, python_source, require_fixed, torchvision_source
from augment.files import installed_version, write_json, write_whole
from augment.folder import find_pictures
from augment.graph import Device
from augment.pipeline import build_transform
from augment.plan import Plan, build_plan
from augment.sources import load_dataset
from augment.stored import name_of
from augment.wording import amount

__all__ = ["export_dali", "parity", "python_source", "torchvision_source"]

OUT = Path("outputs/export")
DALI_FILES: Mapping[Device, str] = MappingProxyType({"cpu": "transform_cpu.dali", "gpu": "transform_gpu.dali"})
PYTHON_FILE, TORCHVISION_FILE = "transform.py", "transform_torchvision.py"
_EXAMPLES = """\
  +aug=imagenette                    the recipe's validation transform, compared on the built-in sample
  +aug=imagenette --photos DIR       compared on pictures of your own
  --run outputs/DATE/RUN --out DIR   what a model was validated with, to a folder of your choice"""
_WHY = {
    PYTHON_FILE: "Pillow rounds to whole levels between the two passes of a resize",
    TORCHVISION_FILE: "Pillow's filter ends at the edge; a center crop is cut at whole pixels",
}
# What those who load a pipeline may choose anew.
BATCH_SIZE, THREADS = 64, 4


def export_dali(plan: Plan, file: Path, device: Device) -> None:
    """Write a plan as a serialized DALI pipeline, for `nvidia.dali.Pipeline.deserialize`.

    Its input "encoded" are the bytes of encoded pictures, its output is (N, 3, size, size) float32, normalized.

    Args:
        plan: a transform that draws nothing.
        file: where to write.
        device: where it is to run; gpu can be written without one, and is loaded with `device_id`.

    Raises:
        UserError: the plan has random steps, or any besides the crop.
    """
    require_fixed(plan)
    pipeline = build_transform(plan, device=device, batch_size=BATCH_SIZE, threads=THREADS)
    write_whole(file, pipeline.serialize())


# ---- the command line


def export(plan: Plan, folder: Path, files: Sequence[Picture]) -> list[Parity]:
    """Write a plan in every form, compare them with validation on `files`, and write what was found.

    Args:
        plan: the validation transform.
        folder: where to write; made when missing.
        files: pictures that can be decoded, at least one.

    Raises:
        UserError: see `python_source`, or the folder cannot be written.
    """
    sources = {PYTHON_FILE: python_source(plan)}
    if has_compose(plan):
        sources[TORCHVISION_FILE] = torchvision_source(plan)
    with writing(f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in sources.items():
            write_whole(folder / name, source)
        for device, name in DALI_FILES.items():
            export_dali(plan, folder / name, device)

    has_gpu = torch.cuda.is_available()
    devices: list[Device] = ["cpu", "gpu"] if has_gpu else ["cpu"]
    forms = [dali_form(folder / DALI_FILES[device], device) for device in devices]
    for name in sources:
        with suppress(ImportError):  # torchvision need not be there
            forms.append(pillow_form(folder / name, _WHY[name]))
    loaders = [torch.device("cpu"), *([torch.device("cuda")] if has_gpu else [])]
    results = [result for loader in loaders for result in parity(plan, files, forms, loader)]
    write_json(folder / "parity.json", _report(plan, results))
    worst = max(results, key=lambda result: result.mean_levels).worst
    draw_parity(plan, worst, forms, loaders[0], folder / "parity.png")
    return results


def _report(plan: Plan, results: Sequence[Parity]) -> dict[str, Any]:
    packages = ("nvidia-dali-cuda120", "pillow", "numpy", "torchvision")
    return {
        "plan": str(plan).splitlines(),
        "digest": plan.digest,
        "versions": {name: installed_version(name) for name in packages},
        "results": [
            {name: round(v, 6) if isinstance(v, float) else v for name, v in row.items()}
            for row in ({f.name: getattr(r, f.name) for f in fields(r)} | {"worst": name_of(r.worst)} for r in results)
        ],
    }


def _pictures(options: Namespace, own: Callable[[], Sequence[Picture]]) -> list[Picture]:
    """Return the pictures to compare on, by default `own()`: at most `--limit` of them, spread evenly."""
    files: list[Picture]
    if options.photos is None:
        files = [*own()]
    elif not options.photos.is_dir():
        raise UserError(f"--photos {options.photos}: there is no such folder.")
    else:
        files = [*find_pictures(options.photos)]
    if not files:
        raise UserError(f"--photos {options.photos}: holds no pictures.")
    count = min(len(files), options.limit)
    files = [files[index * len(files) // count] for index in range(count)]
    if options.photos is not None and (problems := check_files(files)):
        first = problems[0]
        raise UserError(
            f"--photos {options.photos}: {len(problems)} cannot be used: {name_of(first.file)} {first.reason}"
        )
    return files


def _recipe(options: Namespace, overrides: Sequence[str]) -> Recipe:
    """Return the recipe that is asked for: of overrides, or of a run."""
    run = options.run
    if run is None:
        return compose_recipe(overrides)
    if overrides:
        raise UserError(f"--run {run} and {overrides[0]}: allowed is the one or the other.")
    if not (run / "config.yaml").is_file():
        raise UserError(f"--run {run}: no config.yaml in it. Allowed: the folder of a run.")
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    plain = plain_values(config)
    return Recipe(parse_aug(plain.get("aug")), 0, tuple(plain.get("plugins") or ()), plain)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _parser() -> Parser:
    parser = Parser("augment.export", "Export the validation transform, to serve a model with.", _EXAMPLES)
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="take the recipe of a run, with its model's mean and std"
    )
    parser.add_argument("--out", type=output, metavar="DIR", help=f"where to write; by default a folder of {OUT}")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="pictures to compare on, in place of the val split")
    parser.add_argument("--limit", type=_positive, default=500, metavar="N", help="how many of them at most (500)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with readable_errors():
        options, overrides = _parser().split(sys.argv[1:] if arguments is None else arguments)
        recipe = _recipe(options, overrides)
        plan = build_plan(recipe.aug, "val")
        require_fixed(plan, forms=CROPS)
        folder = options.out or OUT / plan.digest
        results = export(plan, folder, _pictures(options, lambda: load_dataset(recipe.source()).val.files))
        _print(plan, results, Console(highlight=False, markup=False, soft_wrap=True))
        if options.run is None and recipe.aug.mean is None:
            sys.stdout.write("Mean and std are ImageNet's; those of a run's model come with --run DIR.\n")
        sys.stdout.write(f"{amount(results[0].pictures, 'picture')}; written to {folder}\n")
    return 0


def _print(plan: Plan, results: Sequence[Parity], console: Console) -> None:
    console.print(str(plan))
    console.print(parity_table(results))
    for form, why in {result.form: result.why for result in results}.items():
        console.print(f"{form}: {why}")
    if not torch.cuda.is_available():
        console.print(f"{DALI_FILES['gpu']} is not compared: there is no GPU here.")


if __name__ == "__main__":
    sys.exit(main())
