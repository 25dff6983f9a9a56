"""Checks of a configuration that try out the data and the model."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import config_of

from augment.cli.compose import compose
from augment.cli.config_files import CONF
from augment.data.dataset import Dataset, Split
from augment.support.errors import UserError
from trainer.run.config.checks import check_config
from trainer.run.config.schema import parse_config


@pytest.fixture
def three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Split((), ())
    monkeypatch.setattr(
        "trainer.run.config.schema.load_dataset", lambda *_: Dataset(("ant", "bee", "cat"), nothing, nothing)
    )


@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize(("data", "recipe"), [("sample_points", "keypoints"), ("sample", "imagenette")])
def test_a_recipe_for_the_targets_is_recommended(
    data: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("augment.data.generated.annotated.TRAIN", 4)
    monkeypatch.setattr("augment.data.generated.annotated.VAL", 2)
    with pytest.raises(UserError, match=rf"does not predict .* Choose aug={recipe} or model=timm or "):
        check_config(parse_config(compose([f"data={data}", "model=detector", "fit.device=cpu"])))


@pytest.mark.usefixtures("three_classes")
@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("resnet81", 64, "model.name: unknown model 'resnet81'"), ("vit_tiny_patch16_224", 8, "aug.size=8: the model")],
)
def test_a_model_that_cannot_be_built_is_found_before_the_run(name: str, size: int, message: str) -> None:
    parsed = config_of(model={"kind": "timm", "name": name}, aug={"size": size}, fit={"device": "cpu"})
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        check_config(parsed)


@pytest.mark.usefixtures("three_classes")
@pytest.mark.parametrize("name", sorted(file.stem for file in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_that_comes_with_the_project(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It composes, parses and checks; `data.root` is what a source of one's own images asks for."""
    monkeypatch.setattr("trainer.models.base._reach", lambda url: None)
    root = ["data.root=d"] if compose([f"+experiment={name}"])["data"]["source"] == "folder" else []
    parsed = parse_config(compose([f"+experiment={name}", "fit.device=cpu", *root]))
    check_config(parsed)
    assert parsed.aug.train, "an experiment has a recipe"
    assert parse_config(parsed.resolved).resolved == parsed.resolved


def test_a_single_class_is_rejected(tmp_path: Path, image_files: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / "photos/all" / name).mkdir(parents=True)
        for number, file in enumerate(image_files.files[:4]):
            shutil.copy(file, tmp_path / f"photos/all/{name}/{number}{file.suffix}")
    Path("cat.txt").write_text("".join(f"{file} cat\n" for file in Path("photos/all/cat").iterdir()))
    above = {"source": "folder", "root": "photos", "val_fraction": 0.25}
    with pytest.raises(UserError, match=r"^data\.root=photos: there is only one class, .*data\.root=photos/all\.$"):
        check_config(config_of(data=above, fit={"device": "cpu"}))
    listed = {"source": "filelist", "train": "cat.txt", "val": "cat.txt"}
    with pytest.raises(UserError, match=r"^data\.train=cat\.txt: there is only one class, cat, .* two classes"):
        check_config(config_of(data=listed, fit={"device": "cpu"}))


@pytest.mark.usefixtures("three_classes")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"fit": {"momentum": 0.9, "momentum_low": 0.95}}, "fit.momentum_low=0.95 needs fit.schedule=one_cycle"),
        ({"fit": {"momentum_low": 0.8, "schedule": "constant"}}, "fit.momentum_low=0.8 needs fit.schedule=one_cycle"),
        ({"fit": {"momentum": 0.9, "momentum_low": 0.8, "optimizer": "madgrad"}}, None),
        ({"fit": {"momentum_low": 0.8}}, "fit.momentum_low=0.8 needs fit.schedule=one_cycle"),
        ({"callbacks": {"freeze": {"layers": "layer9.*"}}}, "callbacks.freeze.layers: layer9.* freezes no parameter."),
    ],
)
def test_what_only_the_model_shows_is_found_before_the_run(sections: dict[str, Any], message: str | None) -> None:
    fit = {"device": "cpu"} | sections.pop("fit", {})
    parsed = config_of(fit=fit, **sections)
    if message is None:
        check_config(parsed)
    else:
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            check_config(parsed)
