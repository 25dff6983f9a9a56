"""Overrides that name files, steps or keys that are not there."""

import re

import pytest

from augment.cli.choices import check_groups
from augment.cli.compose import compose
from augment.cli.overrides import parse
from augment.support.errors import UserError


def check(*tokens: str) -> None:
    check_groups([parse(token) for token in tokens])


@pytest.mark.parametrize(
    "tokens",
    [
        ["data=folder"],
        ["+aug=imagenette"],
        ["+aug=imagenette.yaml"],
        ["callbacks=[default,wandb]"],
        ["fit=article", "model=timm", "aug={size: 8}", "~data", "++fit.lr=foldr"],
    ],
)
@pytest.mark.usefixtures("conf")
def test_files_that_are_there(tokens: list[str]) -> None:
    check(*tokens)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (
            "data=foldr",
            "data: unknown name 'foldr'. Did you mean 'folder'? Allowed: filelist, folder, imagenette, ",
        ),
        (
            "+aug=imagenete",
            "aug: unknown name 'imagenete'. Did you mean 'imagenette'? Allowed: auto_augment, byol, dino, finetune, ",
        ),
        (
            "model=resnet18",
            "model: unknown name 'resnet18'. Did you mean 'xresnet18'? Allowed: cnn, timm, xresnet,",
        ),
        ("callbacks=[default,wandbb]", "callbacks: unknown name 'wandbb'. Did you mean 'wandb'?"),
    ],
)
@pytest.mark.usefixtures("conf")
def test_an_unknown_file_is_refused_with_the_nearest(token: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        check("data=folder", token)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["+aug=imagenette", "~aug.train.rotat"], "~aug.train.rotat: there is no such key. Did you mean 'rotate'?"),
        (["~fitt"], "~fitt: there is no such key. Did you mean 'fit'?"),
        (
            ["+aug=imagenette", "~aug.train.warp", "~aug.val.flip"],
            "~aug.val.flip: there is no such key. Allowed: center_",
        ),
    ],
)
def test_what_is_deleted_must_be_there(tokens: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        compose(tokens)
    assert "warp" not in compose(["+aug=imagenette", "~aug.train.warp"])["aug"]["train"]


def test_a_model_may_be_one_of_timms() -> None:
    with pytest.raises(UserError, match=r"xse_resnext50\. model=timm model\.name=resnet18 if it is one of timm's\.$"):
        compose(["model=resnet18"])


def test_a_recipe_is_chosen_once() -> None:
    with pytest.raises(UserError, match=r"^aug: chosen twice, none and imagenette\. Allowed: once\.$"):
        compose(["+aug=none", "aug=imagenette"])


def test_a_step_is_not_set_to_null() -> None:
    """A bare step of a file applies always, which is not what null means for callbacks."""
    with pytest.raises(UserError, match=r"^aug\.train\.rotate: null is not allowed\. .* or ~aug\.train\.rotate, which"):
        compose(["+aug=imagenette", "aug.train.rotate=null"])
    assert compose(["aug.train.flip=null", "aug.train.flip.p=0.5"])["aug"]["train"]["flip"] == {"p": 0.5}
