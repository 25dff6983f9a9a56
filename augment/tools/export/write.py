"""Write a recipe's validation transform for serving, and compare each form with the pipeline."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from augment.cli.compose import Recipe, compose_recipe
from augment.cli.parser import writing
from augment.cli.trust import with_overrides
from augment.data.dataset import ImageRef
from augment.data.sources import load_dataset
from augment.pipeline.graph import Device
from augment.pipeline.serving.pillow import CROPS
from augment.pipeline.serving.serialized import serialize
from augment.pipeline.serving.transform_source import python_source, require_fixed
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug
from augment.support.console import text_console
from augment.support.errors import UserError
from augment.support.files import installed_version, write_atomically, write_json
from augment.support.own_code import load_plugins
from augment.support.text import amount
from augment.support.yaml_files import read_yaml
from augment.tools._photos import find_photos
from augment.tools.export.parity import Parity, load_dali, load_python, parity, parity_table

DALI_FILES: Mapping[Device, str] = {"cpu": "transform_cpu.dali", "gpu": "transform_gpu.dali"}
PYTHON_FILE = "transform.py"
_OF_RUNS = ("plugins=", "aug.plugins=", "data=", "data.")  # overrides that --run allows


def export(plan: Plan, folder: Path, files: Sequence[ImageRef]) -> list[Parity]:
    """Write a plan in every form, compare each form with validation, and write a report.

    Args:
        plan: the plan of validation.
        folder: the folder to write to; created if it is missing.
        files: images to compare on, at least one; all can be decoded.

    Raises:
        UserError: the plan cannot be exported (see `python_source`), or the folder cannot be written.
    """
    source = python_source(plan)
    with writing(f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / PYTHON_FILE, source)
        for device, name in DALI_FILES.items():
            write_atomically(folder / name, serialize(plan, device))

    loaders = {"cpu": "cpu", "gpu": "cuda"} if torch.cuda.is_available() else {"cpu": "cpu"}
    forms = {file: load_dali(folder / file, device) for device, file in DALI_FILES.items() if device in loaders}
    forms[PYTHON_FILE] = load_python(folder / PYTHON_FILE)
    results = [one for name in loaders.values() for one in parity(plan, files, forms, torch.device(name))]
    report = {
        "plan": str(plan).splitlines(),
        "digest": plan.digest,
        "versions": {name: installed_version(name) for name in ("nvidia-dali-cuda120", "pillow", "numpy")},
        "results": list(map(vars, results)),
    }
    write_json(folder / "parity.json", report)
    return results


def _recipe(options: Namespace, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a run, or of overrides."""
    run = options.run
    if run is None:
        return compose_recipe(overrides)
    if others := [token for token in overrides if not token.lstrip("+").startswith(_OF_RUNS)]:
        raise UserError(f"--run {run} and {others[0]}: cannot be combined. Allowed: one of them.")
    file = run / "config.yaml"
    if not file.is_file():
        raise UserError(f"--run {run}: contains no config.yaml. Allowed: the folder of a run.")
    config = read_yaml(file, folder=run)
    if not isinstance(config, dict):
        raise UserError(f"{file}: not the configuration of a run.")
    plus = [token.lstrip("+") for token in overrides]
    plain = with_overrides(config, plus, file, trust=options.trust, data=options.photos is None)
    load_plugins(tuple(plain.get("plugins") or ()), "plugins")  # which may declare ops
    return Recipe(parse_aug(plain.get("aug")), 0, tuple(plain.get("plugins") or ()), plain)


def export_recipe(options: Namespace, overrides: Sequence[str], out: Path) -> None:
    """Export as the command line asks, into a folder of `out` unless it names one, and print what was compared.

    Raises:
        UserError: the recipe cannot be exported, or the images to compare on cannot be found.
    """
    recipe = _recipe(options, overrides)
    plan = build_plan(recipe.aug, "val")
    require_fixed(plan, forms=CROPS)
    folder = options.out or out / plan.digest
    files = find_photos(options.photos, lambda: load_dataset(recipe.source()).val.files, options.limit)
    results = export(plan, folder, files)
    console = text_console()
    console.print(str(plan))
    console.print(parity_table(results))
    if not torch.cuda.is_available():
        console.print(f"{DALI_FILES['gpu']} was not compared, as there is no GPU.")
    if options.run is None and recipe.aug.mean is None:
        console.print("Mean and std are ImageNet's; --run DIR uses those of a run's model.")
    console.print(f"Compared on {amount(results[0].images, 'image')}; written to {folder}")
