"""Write a recipe's validation transform for serving."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from augment.cli.compose import Recipe, compose_recipe
from augment.cli.parser import writing
from augment.cli.trust import with_overrides
from augment.pipeline.graph import Device
from augment.pipeline.serving.serialized import serialize
from augment.pipeline.serving.transform_source import python_source
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug
from augment.support.console import text_console
from augment.support.errors import UserError
from augment.support.files import write_atomically
from augment.support.own_code import load_plugins
from augment.support.yaml_files import read_yaml

DALI_FILES: Mapping[Device, str] = {"cpu": "transform_cpu.dali", "gpu": "transform_gpu.dali"}
_OF_RUNS = ("plugins=", "aug.plugins=")  # overrides that --run allows


def export(plan: Plan, folder: Path) -> None:
    """Write the plan of validation in every form to a folder.

    Raises:
        UserError: the plan cannot be exported (see `python_source`), or the folder cannot be written.
    """
    source = python_source(plan)
    with writing(f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "transform.py", source)
        for device, name in DALI_FILES.items():
            write_atomically(folder / name, serialize(plan, device))


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
    plain = with_overrides(config, plus, file, trust=options.trust, data=False)
    load_plugins(tuple(plain.get("plugins") or ()), "plugins")  # which may declare ops
    return Recipe(parse_aug(plain.get("aug")), 0, tuple(plain.get("plugins") or ()), plain)


def export_recipe(options: Namespace, overrides: Sequence[str], out: Path) -> None:
    """Export as the command line asks, into a folder of `out` unless it names one.

    Raises:
        UserError: the recipe cannot be exported.
    """
    recipe = _recipe(options, overrides)
    plan = build_plan(recipe.aug, "val")
    folder = options.out or out / plan.digest
    export(plan, folder)
    console = text_console()
    console.print(str(plan))
    if options.run is None and recipe.aug.mean is None:
        console.print("Mean and std are ImageNet's; --run DIR uses those of a run's model.")
    console.print(f"Written to {folder}")
