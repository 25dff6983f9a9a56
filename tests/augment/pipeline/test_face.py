"""The public face: `import augment` alone, in the loops that people write."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import augment
from augment import Recipe, UserError

ROOT = Path(__file__).parents[3]


# --- the package ---


def test_importing_it_imports_neither_torch_nor_dali() -> None:
    code = "import sys, augment; print([name for name in ('torch', 'nvidia', 'hydra', 'PIL') if name in sys.modules])"
    code += "; augment.load_recipe('strong'); print([n for n in ('torch', 'nvidia.dali') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n[]\n"


# --- recipes ---


def test_a_recipe_is_a_name_a_file_or_a_mapping(tmp_path: Path) -> None:
    named = augment.load_recipe("leaderboard_80", "aug.size=48")
    assert named.aug.size == (48, 48)
    for file in (ROOT / "conf" / "aug" / "leaderboard_80.yaml", str(ROOT / "conf" / "aug" / "leaderboard_80.yaml")):
        assert augment.load_recipe(file, "aug.size=48").aug == named.aug
    steps = {"flip": {"p": 0.5}, "rotate": {"p": 0.5}}
    mapping = augment.load_recipe({"size": 64, "train": steps}, "aug.train.rotate.p=1", "~aug.train.flip", "seed=3")
    assert (mapping.aug.size.plain, [(step.key, step.p) for step in mapping.aug.train]) == (64, [("rotate", 1)])
    assert mapping.seed == 3
    file = ROOT / "conf" / "aug" / "segment.yaml"  # which chooses a model, too
    assert augment.load_recipe(file).aug == augment.load_recipe("segment").aug
    (tmp_path / "mine.yaml").write_text("defaults: [imagenette]\nsize: 40\n")
    assert repr(augment.load_recipe({"train": steps}, "aug.size=64")) == f"Recipe({{'train': {steps}, 'size': 64}})"
    mine = augment.load_recipe(tmp_path / "mine.yaml")
    assert (mine.aug.size.plain, mine.aug.train) == (40, augment.load_recipe("imagenette").aug.train)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("list.yaml",), "list.yaml: [1, 2] is not a mapping"),
        (("broken.yaml",), "broken.yaml: line 2, column 1: did not find expected ',' or ']'"),
        (({"size": "${x}"},), "aug.size: ${x}: Interpolation key 'x' not found."),
        (("imagenette", "+aug=strong"), "aug is chosen twice: imagenette and strong."),
        (("imagenette", "size"), "'size' is not an override."),
        ((3,), "recipe: 3 is not allowed. Pass the name of a file in conf/aug, the path to a YAML file, or a "),
        (({"train": {"flip": {"p": np.float32(1)}}},), "aug.train.flip.p: Value 'float32' is not a supported"),
        (({"defaults": ["nune"]},), "aug: unknown name 'nune'. Did you mean 'none'?"),
    ],
)
def test_recipes_that_are_not_allowed(
    given: tuple[Any, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        augment.load_recipe(*given)
    assert augment.load_recipe("none").aug.train == ()  # nothing of it is left


# --- loaders ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": "64"}, "batch_size: '64' is not allowed. Use a whole number from 1 to"),
        ({"threads": -1}, "threads: -1 is not allowed. Use a whole number from 1 to 1024 or null."),
        ({"world_size": 0}, "world_size: 0 is not allowed."),
        ({"rank": 2, "world_size": 2}, "rank: 2 of world_size=2 is not allowed. Allowed: 0 to 1."),
        ({"rank": 0.5, "world_size": 2}, "rank: 0.5 is not allowed."),
        ({"seed": "0"}, "seed: '0' is not allowed. Use a whole number or null."),
        ({"drop_last": "no"}, "drop_last: 'no' is not allowed. Use true or false."),
        ({"half": 1}, "half: 1 is not allowed. Use true or false."),
        ({"split": None}, "split=None: unknown name. Allowed: train, val."),
        ({"device": 1}, "device: '1' is not allowed. Did you mean 'cuda:1'? Allowed: auto, cpu, cuda, cuda:N."),
        (
            {"data": [1]},
            "data: list is not allowed. Pass the name of a source, such as data='folder', root=DIR. For a Dataset, use "
            "data='own', train=DATASET.",
        ),
    ],
)
def test_arguments_of_a_loader_that_are_not_allowed(
    given: dict[str, Any], message: str, recipe: Recipe, folder: Path
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        augment.make_loader(**{"recipe": recipe, "data": "folder", "root": folder, "device": "cpu"} | given)
