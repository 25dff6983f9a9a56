"""Write a recipe's validation transform for serving, and measure how closely each form matches the loader.

Differences are in levels of 0..255.
"""

import runpy
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from augment.cli.compose import Recipe, compose_recipe
from augment.cli.parser import writing
from augment.cli.trust import with_overrides
from augment.data.dataset import ImageRef, Split
from augment.data.images import name_of, open_image, read_encoded
from augment.data.sources import load_dataset
from augment.pipeline.graph import Device, Placement
from augment.pipeline.loader import Loader
from augment.pipeline.reading import Order
from augment.pipeline.serving.pillow import CROPS
from augment.pipeline.serving.serialized import deserialize, serialize
from augment.pipeline.serving.transform_source import python_source, require_fixed
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug
from augment.support.console import progress_bar, text_console
from augment.support.errors import UserError
from augment.support.files import installed_version, write_atomically, write_json
from augment.support.own_code import load_plugins
from augment.support.text import amount
from augment.support.yaml_files import read_yaml
from augment.tools._photos import find_photos

DALI_FILES: Mapping[Device, str] = {"cpu": "transform_cpu.dali", "gpu": "transform_gpu.dali"}
PYTHON_FILE = "transform.py"
_OF_RUNS = ("plugins=", "aug.plugins=", "data=", "data.")  # overrides that --run allows
BATCH = 16

Floats = NDArray[np.float32]


# Turns N files, at most `BATCH`, into (N, 3, height, width), normalized.
Transform = Callable[[Sequence[ImageRef]], Floats]


@dataclass(frozen=True)
class Parity:
    """The difference of an export from validation."""

    form: str  # name of its file
    loader: str  # where validation ran, cpu or cuda
    images: int  # number of images compared
    max_levels: float  # largest absolute difference, of 255
    mean_levels: float  # mean absolute difference, of 255
    beyond: float  # share of values that differ by more than one level
    worst: str  # name of the image with the largest mean difference


def load_dali(file: Path, device: Device) -> Transform:
    """Load a serialized pipeline as a server does, with DALI only."""
    run = deserialize(file.read_bytes(), device, BATCH)
    return lambda files: run([read_encoded(file) for file in files])


def load_python(file: Path) -> Transform:
    """Load a Python file that defines `transform(image)`."""
    function = runpy.run_path(str(file))["transform"]

    def transform(files: Sequence[ImageRef]) -> Floats:
        arrays = []
        for file in files:
            with open_image(file) as image:
                arrays.append(np.asarray(function(image), np.float32))
        return np.stack(arrays)

    return transform


def parity(plan: Plan, files: Sequence[ImageRef], forms: Mapping[str, Transform], device: torch.device) -> list[Parity]:
    """Compare exports, by the names of their files, with the loader of validation on a device, image by image."""
    loader = Loader(plan, Split(tuple(files), (0,) * len(files)), Order(BATCH, 0), Placement().on(device, 2))
    levels = 255 * np.array(plan.std, np.float32)[:, None, None]
    # For each image: the largest difference, the mean one, and the share beyond a level.
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in forms}
    with progress_bar() as progress:
        task = progress.add_task(f"Comparing with the loader ({device.type})", total=len(files))
        for batch in loader:
            ours, batch_files = batch.images.cpu().numpy(), [files[index] for index in batch.indices.tolist()]
            for name, transform in forms.items():
                for off in levels * np.abs(transform(batch_files) - ours):
                    # 1.5, not 1: interpolated values are not exactly whole levels.
                    found[name].append((float(off.max()), float(off.mean()), float((off > 1.5).mean())))
            progress.advance(task, len(batch))
    results = []
    for name, rows in found.items():
        off = np.array(rows)
        _, mean, beyond = off.mean(axis=0).tolist()
        worst = name_of(files[int(off[:, 1].argmax())])
        results.append(Parity(name, device.type, len(off), float(off[:, 0].max()), mean, beyond, worst))
    return results


def parity_table(results: Sequence[Parity]) -> Table:
    """Return the table for the terminal."""
    table = Table(title="Difference from validation", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("form", no_wrap=True)
    table.add_column("loader")
    for name in ("max, of 255", "mean", "> 1 level"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        table.add_row(r.form, r.loader, f"{r.max_levels:.2f}", f"{r.mean_levels:.4f}", f"{r.beyond:.1%}")
    return table


def export(plan: Plan, folder: Path, files: Sequence[ImageRef]) -> list[Parity]:
    """Write the plan of validation in every form to a folder, compare each form on images, and write a report.

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
