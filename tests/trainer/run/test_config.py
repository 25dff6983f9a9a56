"""The whole configuration: what comes of it, and that what is written down makes the same run again."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
from omegaconf import OmegaConf
from runs import LEAST, config_of

from augment.cli.config_files import CONF
from augment.data.sources import SOURCES, Folder, source
from augment.data.sources.registry import PIXEL_SETTINGS
from augment.params import settings
from augment.recipe.op import OPS
from augment.support.errors import UserError
from trainer.loop import callback as callbacks
from trainer.models.registry import MODELS, Timm, model
from trainer.optim.optimizers import optimizer
from trainer.run.config.equality import identity, identity_text
from trainer.run.config.fit import Fit
from trainer.run.config.schema import CONFIG_FILE, RunLabels, load_config, parse_config
from trainer.tasks.loss import loss
from trainer.tasks.metric import metric
from trainer.tasks.registry import known_tasks


def notes_of(aug: Mapping[str, Any] | None) -> str:
    given = {"data": {"source": "folder", "root": "/photos"}, "model": {"kind": "cnn"}}
    return " ".join(parse_config(given | ({} if aug is None else {"aug": aug})).notes)


@pytest.mark.parametrize("aug", [None, {}, {"size": 64}, {"val": {"resize": None}}])
def test_a_run_without_a_recipe_is_noted(aug: Mapping[str, Any] | None) -> None:
    assert "aug=imagenette" in notes_of(aug)
    assert not notes_of((aug or {}) | {"train": {}})  # as +aug=none has it


def test_settings_that_were_removed_are_ignored_in_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text("data: {source: folder, root: /photos, max_bad: 5}\nmodel: {kind: cnn}\n")
    assert parse_config(load_config(tmp_path)).data.root == "/photos"  # type: ignore[attr-defined]


FIXED = {
    "center_crop": {"scale": 0.9},
    "rotate": {"draw": "once"},
    "flip": {},
    "brightness": {"factor_range": [1.2, 1.2]},
    "sequence": {"steps": {"grayscale": {}, "invert": {}}},
    "erase": {"p": 0},
}


def test_random_validation_is_noted() -> None:
    assert not notes_of({"train": {}, "val": FIXED})
    choice = {"steps": {"grayscale": {}, "invert": {}}}
    for name, values in {
        "rotate": {"p": 1},
        "flip": {"p": 0.5},
        "erase": {},
        "gaussian_noise": {},
        "random_crop": {},
        "one_of": choice,
        "trivial_augment": {},
        "sequence": {"order": "random", **choice},
        "rot90": {},
        "warp": {"draw": "once", "p": 0.5},
        "some_of": choice | {"count_range": [1, 1]},
    }.items():
        assert f"aug.val.{name}: " in notes_of({"train": {}, "val": {name: values}})


FULL: dict[str, Any] = {
    "data": {"source": "folder", "root": "/photos", "skip_bad": True},
    "model": {"kind": "timm", "name": "resnet18", "pretrained": False},
    "aug": {
        "size": 64,
        "fuse": False,
        "mean": [0.1, 0.2, 0.3],
        "train": {"center_crop": {"scale": 0.5}, "rotate": {"p": 0.5}, "rotate_2": {"op": "rotate", "border": "wrap"}},
        "val": {"resize": None},
    },
    "fit": {"epochs": 3, "lr": 1, "optimizer": "adamw", "limit_batches": 7, "resume": "outputs/run"},
    "callbacks": {"checkpoint": {"monitor": "val_loss"}, "grad_clip": {"max_norm": 0.5}, "plots": None},
    "seed": 7,
    "run": {"name": "<b>first</b>", "tags": ["a b", "c"]},
}


@pytest.mark.parametrize(
    ("declare", "names"),
    [
        (metric("classify", name="accuracy"), "metric 'accuracy' is declared in trainer.tasks.classify"),
        (loss("classify", name="cross_entropy"), "loss 'cross_entropy' is declared in trainer.tasks.named_losses"),
        (optimizer("muon"), "optimizer 'muon' is declared in trainer.optim.muon"),
        (model("cnn"), "model 'cnn' is declared in trainer.models.registry"),
        (source("folder"), "source 'folder' is declared in augment.data.sources.files"),
    ],
)
def test_a_plugin_cannot_replace_what_is_built_in(declare: Callable[[Any], Any], names: str) -> None:
    known_tasks()
    with pytest.raises(UserError, match=rf"{re.escape(names)} and .*test_config\. Rename yours"):
        declare(lambda: None)


def test_plugins_are_loaded_before_names_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_of_the_config_test.py").write_text(
        "from dataclasses import dataclass\n"
        "from trainer.loop.callback import Callback\n"
        "from trainer.loop.callback import configurable\n"
        "@configurable\n"
        "@dataclass(eq=False)\n"
        "class PluginOfTheConfigTest(Callback): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "plugin_of_the_config_test"
    monkeypatch.setitem(callbacks._CALLBACKS, name, callbacks._CALLBACKS["ema"])  # is taken out again after the test
    parsed = config_of(plugins=[name], callbacks={name: {}})
    assert type(parsed.callbacks[0]()).__name__ == "PluginOfTheConfigTest"
    assert parsed.resolved["plugins"] == [name]


def test_settings_of_callbacks_are_suggested_only_in_fit() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'callbacks\.freeze\.layers'"):
        config_of(fit={"layers": 50})
    with pytest.raises(UserError, match=r"^model\.layers: ") as caught:
        config_of(model={"kind": "cnn", "layers": 50})
    assert "callbacks" not in str(caught.value)


# --- what comes of it ---


def test_the_sections() -> None:
    parsed = parse_config(FULL)
    assert parsed.data == Folder(root="/photos", skip_bad=True)
    assert parsed.model == Timm(name="resnet18")
    assert (parsed.aug.size.plain, parsed.aug.fuse, parsed.aug.mean) == (64, False, (0.1, 0.2, 0.3))
    assert [step.key for step in parsed.aug.train] == ["center_crop", "rotate", "rotate_2"]
    assert [step.key for step in parsed.aug.val] == ["resize"]
    assert parsed.fit == Fit(epochs=3, lr=1.0, optimizer="adamw", limit_batches=7, resume="outputs/run")
    assert parsed.seed == 7
    assert parsed.run == RunLabels(name="<b>first</b>", tags=("a b", "c"))


@pytest.mark.parametrize("callbacks", [None, {}, {"plots": None}])
def test_null_switches_callbacks_off(callbacks: object) -> None:
    parsed = config_of(callbacks=callbacks, fit=None, aug=None)
    assert (parsed.callbacks, parsed.fit) == ((), Fit())
    assert parsed.resolved["callbacks"] == {}


# --- what is written down ---

CONFIGURATIONS: dict[str, Mapping[str, Any]] = {
    "least": LEAST,
    "full": FULL,
    "filelist": LEAST
    | {"data": {"source": "filelist", "train": "a.csv", "val": "b.csv", "task": "regress", "targets": ["x", "y"]}},
    "imagenette": LEAST | {"data": {"source": "imagenette", "variant": "320"}},
    "webdataset": LEAST | {"data": {"source": "webdataset", "train": "t-{0..3}.tar", "val": "v.tar"}},
    "numpy": LEAST
    | {"data": {"source": "numpy", "train": "x.npy", "train_targets": "y.npy", "val": "v.npy", "val_targets": "w.npy"}},
    "xresnet": LEAST | {"model": {"kind": "xresnet", "depth": 26, "groups": 4, "pool": "max"}},
    "callbacks": LEAST | {"callbacks": {"plots": {}, "wandb": None, "checkpoint": None, "progress_bar": {}}},
    "views": LEAST | {"aug": {"views": {"strong": {"size": 64, "steps": {"rotate": {}, "flip": {}}}, "weak": None}}},
    "recipe": LEAST | {"aug": OmegaConf.to_container(OmegaConf.load(CONF / "aug" / "imagenette.yaml"))},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_written_down_makes_the_same_configuration(name: str) -> None:
    first = parse_config(CONFIGURATIONS[name])
    text = OmegaConf.to_yaml(dict(first.resolved))
    read = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(read, dict)
    second = parse_config({str(key): value for key, value in read.items()})
    assert second.resolved == first.resolved
    assert identity_text(identity(second.resolved)) == identity_text(identity(first.resolved))
    assert (second.data, second.model, second.aug, second.fit, second.seed) == (
        *(first.data, first.model, first.aug, first.fit, first.seed),
    )
    assert [vars(make()) | {"console": None} for make in second.callbacks] == [
        vars(make()) | {"console": None} for make in first.callbacks
    ]


def test_defaults_are_written_down_too() -> None:
    """Another version may have others, and the run must be the same."""
    given = {"callbacks": {"checkpoint": {}, "progress_bar": None}, "aug": {"train": {"rotate": {}}}}
    resolved = config_of(**given).resolved
    sections = {"data": SOURCES["sample"], "model": MODELS["cnn"], "fit": Fit}
    for section, cls in sections.items():
        for key, param in settings(cls).items():
            if key in ("test_fraction", *PIXEL_SETTINGS):  # the files of runs without them stay as they were
                assert key not in resolved[section]
                continue
            assert resolved[section][key] == ({"stages": {}, "metrics": []}.get(key, param.default)), key
    checkpoint = {key: param.default for key, param in settings(callbacks.known_callbacks()["checkpoint"]).items()}
    assert resolved["callbacks"] == {"checkpoint": checkpoint}
    assert resolved["aug"]["train"]["rotate"].keys() == {"op", *OPS["rotate"].params}
    assert (resolved["aug"]["size"], resolved["aug"]["fuse"], resolved["aug"]["mean"]) == (128, True, None)
    assert (resolved["seed"], resolved["plugins"]) == (0, [])


# --- normalization ---


@pytest.fixture
def pretrained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A section `model` whose weights were trained with a mean and std of their own."""
    weights = SimpleNamespace(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: weights)
    return {"kind": "timm", "name": "resnet18", "pretrained": True}


@pytest.mark.parametrize(
    ("given", "mean", "std"),
    [
        ({}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        ({"mean": [0, 0, 0]}, (0.0, 0.0, 0.0), (0.4, 0.5, 0.6)),
        ({"mean": None, "std": None}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    ],
)
def test_a_pretrained_model_brings_its_normalization(
    given: dict[str, Any], mean: tuple[float, ...], std: tuple[float, ...], pretrained: dict[str, Any]
) -> None:
    parsed = config_of(model=pretrained, aug=given)
    assert (parsed.aug.mean, parsed.aug.std) == (mean, std)
    assert parsed.resolved["aug"]["mean"] == list(mean)
    assert parsed.resolved["aug"]["std"] == list(std)


def test_any_other_model_leaves_it_open(pretrained: dict[str, Any]) -> None:
    for given in ({"kind": "cnn"}, pretrained | {"pretrained": False}):
        parsed = config_of(model=given)
        assert (parsed.aug.mean, parsed.aug.std) == (None, None)


# --- mistakes ---


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": None}, f"data.source is required. Allowed: {', '.join(SOURCES)}."),
        ({"seed": None}, "seed: None is not allowed. Use "),
        ({"plugins": "mine"}, "plugins: 'mine' is not allowed. "),
        ({"data": {"source": "sample", "dir": {"a": 1}}}, "data.dir: {'a': 1} is not allowed. "),
        ({"aug": {"train": {"rotate": 3}}}, "aug.train.rotate: 3 is not allowed. "),
        ({"callbacks": {"plots": 3}}, "callbacks.plots: 3 is not allowed. "),
        ({"data": {"source": "sample", "warmup": 1, "lr": 1}}, "data.warmup: unknown key. Did you mean 'fit.warmup'?"),
        ({"fit": {"skip_nonfinite": 0}}, "fit.skip_nonfinite: unknown key."),
        ({"output_dir": "runs"}, "output_dir: unknown key. Did you mean 'hydra.run.dir'?"),
        (
            {"data": {"source": "sample", "root": "photos"}},
            "data.root: data=sample has no such key. Add one ",
        ),
    ],
)
def test_mistakes(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        config_of(**sections)


def test_an_empty_configuration_says_what_is_missing() -> None:
    with pytest.raises(UserError, match=r"sections data and model\. .*defaults: \[config, _self_\]"):
        parse_config({})
