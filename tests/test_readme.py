"""What the README says is true: derived parts, commands, keys, and the examples of one's own op and callback."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

import augment.registry
import trainer.callbacks
from augment.compose import compose, compose_recipe, normalize, split_sweep
from augment.config import parse_aug
from augment.params import Range
from augment.pipeline import build_pipeline
from augment.plan import build_plan
from augment.sampler import Sampler
from trainer.config import parse_config
from trainer.reference import README, with_derived_parts

TEXT = README.read_text()
_BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
CODE = {block.splitlines()[0].split()[1].rstrip(","): block for block in _BLOCKS if block.startswith("# ")}


def test_derived_parts_are_up_to_date():
    assert with_derived_parts(TEXT) == TEXT, "run: python -m trainer.reference"


def test_nothing_is_left_to_fill_in():
    assert "@@" not in TEXT


def test_pictures_and_modules_exist():
    for path in [*re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT), *re.findall(r"`((?:augment|trainer)/\w+\.py)`", TEXT)]:
        assert (README.parent / path).is_file(), path


def commands():
    lines = [line.split("#")[0].strip() for line in TEXT.splitlines() if re.match(r"    .*python -m trainer ", line)]
    return [line.split("python -m trainer ")[1].strip() for line in lines]


@pytest.mark.parametrize("command", commands())
def test_commands_compose(command, tmp_path, monkeypatch):
    tokens = [t for t in shlex.split(command) if not t.startswith("-") and "resume" not in t]
    for job in split_sweep(normalize(tokens)):
        assert parse_config(compose(job)).fit.epochs >= 1


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The README's modules, importable; what they register is taken back."""
    for name, code in CODE.items():
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ops, callbacks = dict(augment.registry._OPS), dict(trainer.callbacks._CALLBACKS)
    yield
    for registry, before in ((augment.registry._OPS, ops), (trainer.callbacks._CALLBACKS, callbacks)):
        registry.clear()
        registry.update(before)
    for name in CODE:
        sys.modules.pop(Path(name).stem, None)


def test_an_op_of_ones_own(modules):
    aug = parse_aug({"plugins": ["my_ops"], "train": {"fade": {"amount_range": [0.25, 0.25]}, "brightness": {}}})
    plan = build_plan(aug, "train")
    assert len(plan.stages) == 1
    draws = Sampler(plan, seed=0).draw(0, 0, 3)
    matrix = augment.registry.OPS["fade"].function(draws["fade"]["amount"])
    assert matrix.shape == (3, 3, 4)
    # A quarter of (100, 0, 0) turns into its gray, 29.9.
    np.testing.assert_allclose(matrix[0] @ [100, 0, 0, 1], [82.475, 7.475, 7.475])


def test_a_callback_of_ones_own(modules):
    import my_callbacks

    (make,) = trainer.callbacks.parse_callbacks({"stop_early": {"patience": 5}})
    assert isinstance(make(), my_callbacks.StopEarly)
    assert make().patience == 5


def tool_commands():
    return [line.split("#")[0].split() for line in TEXT.splitlines() if re.match(r"    python -m augment[.]", line)]


@pytest.mark.parametrize("command", tool_commands(), ids=" ".join)
def test_tools_take_what_is_shown(command, monkeypatch):
    module = command[2].removeprefix("augment.")
    place = README.parent / "augment" / module
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
    overrides = [token for token in command[3:] if "=" in token and not token.startswith("-")]
    assert compose_recipe(overrides).aug.size >= 1


def test_programs_of_the_trainer_exist():
    named = set(re.findall(r"python -m trainer[.](\w+)", TEXT))
    assert named >= {"evaluate", "predict", "find_lr", "report", "bench", "reference"}
    for module in named:
        place = README.parent / "trainer" / module
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module


def test_policies_as_shown():
    (block,) = [code for code in re.findall(r"```yaml\n(.*?)```", TEXT, re.S) if "one_of:" in code]
    plan = build_plan(parse_aug(OmegaConf.to_container(OmegaConf.create(block))), "train")
    assert {leaf.op.name for step in plan.tree for leaf in step.leaves()} >= {"gaussian_blur", "shear", "cutmix"}


def test_functions_as_ops(photos, monkeypatch):
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "@numpy_op" in code]
    monkeypatch.setattr(augment.registry, "_OPS", dict(augment.registry._OPS))
    monkeypatch.setattr(augment.registry, "OPS", augment.registry._OPS)
    exec(compile(block, "README.md", "exec"), {"np": np, "Range": Range, "__name__": "mine"})
    for steps, expected in (
        ({"roll": {"rows_range": [3, 3]}}, lambda image: np.roll(image, 3, axis=0)),
        ({"mirror_odd": {}}, lambda image: np.stack([row[::-1] if y % 2 else row for y, row in enumerate(image)])),
    ):
        plan = build_plan(parse_aug({"size": 64, "val": steps}), "val")
        pipeline = build_pipeline(plan, photos, batch_size=len(photos), seed=0, raw=True)
        images = np.array(pipeline.run()[0].as_tensor())
        for image, photo in zip(images, photos, strict=True):
            np.testing.assert_array_equal(image, expected(np.asarray(Image.open(photo))))


def test_the_test_command_is_the_one_that_ci_runs():
    assert len(re.findall(r"&& pytest$", TEXT, re.M)) == 1
    assert 'grep -m 1 "&& pytest$" README.md' in (README.parent / ".ci" / "run").read_text()
