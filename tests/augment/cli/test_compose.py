"""From overrides to the composed configuration: what Hydra makes of them, what is rejected, what programs take."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from augment.cli.compose import compose, compose_recipe, compose_run
from augment.cli.overrides import normalize, reject_words
from augment.data.sources import Folder
from augment.support.errors import UserError
from augment.support.secrets import as_written

# --- what Hydra makes of them ---


def composed(*tokens: str) -> Any:
    return compose_run(normalize(tokens)).plain


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_hydra_takes_what_is_normalized_however_it_was_written(plus: str) -> None:
    tokens = ["aug=imagenette", "data=folder", "data.root=d", "aug.val.center_crop.scale=.9", "fit.lr=2", "aug.size=64"]
    config = composed(*(plus + token for token in tokens))
    assert config["aug"]["val"]["center_crop"]["scale"] == 0.9
    assert (config["fit"]["lr"], config["aug"]["size"]) == (2, 64)
    assert config["data"] == {"source": "folder", "root": "d"}


def test_steps_and_callbacks_may_be_taken_away() -> None:
    config = composed("aug=imagenette", "~aug.train.rotate", "~callbacks.plots", "callbacks.checkpoint=null")
    assert "rotate" not in config["aug"]["train"]
    assert config["callbacks"] == {"progress_bar": {}, "checkpoint": None, "report": {}, "label_audit": {}}


@pytest.mark.parametrize("given", ["wandb", "[default,wandb]", "[tensorboard,mlflow,default]"])
def test_a_tracker_adds_to_the_default_callbacks(given: str) -> None:
    default, chosen = composed()["callbacks"], composed(f"callbacks={given}")["callbacks"]
    assert list(chosen)[: len(default)] == list(default)
    assert set(chosen) - set(default) == set(given.strip("[]").split(",")) - {"default"}


# --- composing ---


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("fit.epochs:3", "'fit.epochs:3' is not an override. Did you mean 'fit.epochs=3'? Allowed"),
        ("fit.lr=${oc.env:NO_SUCH}", "fit.lr: ${oc.env:NO_SUCH}: Environment variable 'NO_SUCH' not found. Use "),
        ("fit.lr=${nothing:1}", "fit.lr: ${nothing:1}: Unsupported interpolation type nothing. Use ${KEY} with a"),
        ("fit.lr=${fit.lr}", "fit.lr: ${fit.lr}: Recursive interpolation detected. Use ${KEY} with a key"),
        ("hydra.run.dirr=x", "Could not override 'hydra.run.dirr'."),
        ("~fitt", "~fitt: this key does not exist. Did you mean 'fit'?"),
        ("~aug=[1]", "Config group override deletion value must be a string"),
        ("x" * 300 + "=1", "[Errno 36] File name too long"),
        ("hydra.searchpath=3", "hydra.searchpath must be a list of strings. Got: 3"),
        ("aug.train.rotate=[-10,10]", "aug.train.rotate: [-10,10] cannot replace a mapping. Use a mapping, such as"),
        ("aug.train.rotate=null", "aug.train.rotate: null is not allowed. Set parameters, such as {p: 0}, or"),
    ],
)
def test_compose_rejects(token: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        compose(["data=folder", "+aug=imagenette", token])


@pytest.mark.parametrize("tokens", [("aug", "=", "imagenette"), ("aug", "=imagenette"), ("aug", "= imagenette")])
def test_blanks_around_an_equals_sign_are_named(tokens: Sequence[str]) -> None:
    with pytest.raises(UserError, match=r"Did you mean 'aug=imagenette'\? Put no spaces around =\."):
        reject_words(tokens)


@pytest.mark.parametrize("tokens", [("fit.lr=0.1,", "0.2"), ("aug.mean=[0.5,", "0.5,", "0.5]")])
def test_blanks_after_a_comma_are_explained(tokens: Sequence[str]) -> None:
    with pytest.raises(
        UserError, match=f"^'{tokens[1]}' is not an override. Write .* values of a sweep without spaces"
    ):
        reject_words(tokens)


def test_a_list_and_a_mapping_do_not_merge() -> None:
    given = ["+aug=imagenette", "aug.train.rotate.angle_range={values: [1]}"]
    with pytest.raises(UserError, match=r"^aug\.train\.rotate\.angle_range: .* cannot be merged with .*=null first"):
        compose(given)
    cleared = compose([*given[:1], "aug.train.rotate.angle_range=null", *given[1:]])
    assert cleared["aug"]["train"]["rotate"]["angle_range"] == {"values": [1]}


# --- what the programs of this package take from it ---


def test_a_recipe_has_typed_augmentation_seed_and_source() -> None:
    recipe = compose_recipe(["+aug=imagenette", "aug.val.center_crop.scale=.5", "seed=7", "data=folder", "data.root=d"])
    assert [step.key for step in recipe.aug.train][:2] == ["random_resized_crop", "flip"]
    assert recipe.aug.val[0].params["scale"] == 0.5
    assert recipe.seed == 7
    assert recipe.source() == Folder(root="d")


@pytest.mark.parametrize(
    "given",
    [
        "data.options={token: abc}",
        "data.options.token=abc",
        "data.url=http://me:abc@host",
        "data.options.x=[{token: abc}]",
    ],
)
def test_a_secret_is_rejected(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"looks like a secret.* set data\.\S+='\$\{oc.env:NAME\}'") as caught:
        normalize([given])
    assert "abc" not in str(caught.value)
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "mine.yaml").write_text("source: own\noptions: {password: abc}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data\.options\.password looks like a secret"):
        compose(["data=mine"])
    monkeypatch.setenv("MINE", "abc")
    options = compose(["data=mine", "data.options.password='${oc.env:MINE}'"])["data"]["options"]
    assert (options, as_written(options)) == ({"password": "abc"}, {"password": "${oc.env:MINE}"})


def test_nan_is_no_secret() -> None:
    """Though it equals nothing, not even its written form."""
    assert normalize(["fit.lr=nan"]) == ["++fit.lr=nan"]
