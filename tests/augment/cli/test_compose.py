"""From a command line to the composed configuration: plus signs, names of files, what is refused, what is made."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import augment.recipe.op
from augment.cli.choices import check_groups
from augment.cli.compose import SECTIONS, compose, compose_jobs, compose_recipe
from augment.cli.conf import CONF, default_groups, group_names
from augment.cli.overrides import key_of, normalize, parse
from augment.data.sources import Folder, Sample
from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.hydra_versions import VERSION_BASE
from augment.support.secrets import as_written


def test_groups_are_the_sections() -> None:
    assert set(SECTIONS) - {"run"} <= set(group_names())
    assert set(default_groups()) == {"data", "model", "aug", "fit", "callbacks", "experiment"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # A value: set it whether or not the YAML mentions it.
        ("fit.lr=0.1", "++fit.lr=0.1"),
        ("+fit.lr=0.1", "++fit.lr=0.1"),
        ("++fit.lr=0.1", "++fit.lr=0.1"),
        ("seed=3", "++seed=3"),
        ("seed=0,1,2", "++seed=0,1,2"),
        ("aug.train.rotate.p=0,0.075,0.2", "++aug.train.rotate.p=0,0.075,0.2"),
        ("aug.train.rotate.p=range(0,3)", "++aug.train.rotate.p=range(0,3)"),
        ("aug.val.center_crop.scale=.9", "++aug.val.center_crop.scale=.9"),
        ("aug.train.rotate.angle_range=[-7,7]", "++aug.train.rotate.angle_range=[-7,7]"),
        ("aug.train.rotate_2={op: rotate, p: 0.5}", "++aug.train.rotate_2={op: rotate, p: 0.5}"),
        ("callbacks.plots=null", "++callbacks.plots=null"),
        ("data.root='/a/b=c'", "++data.root='/a/b=c'"),
        ("data.root='a, b'", "++data.root='a, b'"),
        ("fit.limit_batches=", "++fit.limit_batches="),
        ("plugins=[mine]", "++plugins=[mine]"),
        ("colour=red", "++colour=red"),
        # A file of a group.
        ("data=folder", "data=folder"),
        ("+data=folder", "data=folder"),
        ("++data=folder", "data=folder"),
        ("model=cnn,timm", "model=cnn,timm"),
        ("callbacks=[default,wandb]", "callbacks=[default,wandb]"),
        ("aug=imagenette", "aug=imagenette"),
        ("+aug=imagenette", "aug=imagenette"),
        ("++aug=imagenette", "aug=imagenette"),
        ("aug=none,imagenette", "aug=none,imagenette"),
        ("+experiment=finetune", "experiment=finetune"),
        ("experiment=glob(imagenette_*)", "experiment=glob(imagenette_*)"),
        # A whole section given in place.
        ("aug={size: 64}", "++aug={size: 64}"),
        ("+model={kind: timm, name: resnet18}", "++model={kind: timm, name: resnet18}"),
        # Left alone.
        ("~aug.train.rotate", "~aug.train.rotate"),
        ("~callbacks.plots", "~callbacks.plots"),
        ("~fit.lr=0.1", "~fit.lr=0.1"),
        ("~data", "~data"),
        ("hydra.run.dir=x", "hydra.run.dir=x"),
        ("+hydra.verbose=true", "+hydra.verbose=true"),
        ("hydra/job_logging=none", "hydra/job_logging=none"),
        ("-m", "-m"),
        ("--multirun", "--multirun"),
        ("--config-dir=a", "--config-dir=a"),
        ("--cfg", "--cfg"),
        ("job", "job"),
    ],
)
def test_plus_signs(given: str, expected: str) -> None:
    assert normalize([given]) == [expected]


def test_a_home_is_known_behind_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell expands a ~ in words that begin with one only, and Hydra refuses it."""
    monkeypatch.setenv("HOME", "/home/me")
    assert normalize(["data.root=~/a,~/c", "fit.resume='~/d'"]) == [
        "++data.root=/home/me/a,/home/me/c",
        "++fit.resume='~/d'",
    ]
    assert parse("fit.resume=~/d").value() == "/home/me/d"


def test_many_at_once_keep_their_order() -> None:
    given = ["-m", "fit.lr=1", "+aug=imagenette", "~aug.train.flip", "seed=0,1"]
    assert normalize(given) == ["-m", "++fit.lr=1", "aug=imagenette", "~aug.train.flip", "++seed=0,1"]


@pytest.mark.parametrize("value", ["Bilder äöü/Fisch", "Tom & Jerry #1", "照片", "~/ü", "a;b!"])
def test_what_the_grammar_knows_in_quotes_only_is_put_in_quotes(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    meant = value.replace("~", "/home/me")
    assert normalize([f"data.root={value}"]) == [f'++data.root="{meant}"']
    assert compose(["data=folder", f"data.root={value}"])["data"]["root"] == meant


def test_what_has_a_meaning_is_not_put_in_quotes() -> None:
    for given in ("data.root='ä, b'", "aug.mean=[1,2,3]", "fit.lr=0.1,0.2", "fit.beta2=null", "data.root=a b"):
        assert normalize([given]) == [f"++{given}"]


@pytest.mark.parametrize("given", ["fit lr=3", "data.root=/a/b=c"])
def test_what_cannot_be_parsed_is_named(given: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(given)}: cannot be read.*put in quotes"):
        normalize([given])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("a=[1", "[ and ] do not match"),
        ("a=(-7,7)", "a list is written in brackets: [-7,7]"),
        ("a=1e-3,", "one comma too many"),
        ("a=rang(3)", "unknown function 'rang'; Did you mean 'range'? Allowed: "),
        ("a=interval(x,y)", "TypeError while evaluating 'interval(x,y)': "),
    ],
)
def test_the_reason_is_not_that_of_a_grammar(given: str, reason: str) -> None:
    with pytest.raises(
        UserError, match=f"^{re.escape(f'{given}: cannot be read ({reason}')}(?!.*expecting).*put in quotes"
    ):
        parse(given)


def test_key_of() -> None:
    assert [key_of(parse(token)) for token in ("++fit.lr=1", "+aug=none", "~aug.train.flip", "data=folder")] == [
        *("fit.lr", "aug", "aug.train.flip", "data")
    ]


# --- what Hydra makes of them ---


@pytest.fixture
def conf() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), **VERSION_BASE):
        yield


def composed(*tokens: str) -> Any:
    return OmegaConf.to_container(hydra.compose("config", normalize(tokens)))


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.usefixtures("conf")
def test_hydra_takes_what_is_normalized_however_it_was_written(plus: str) -> None:
    tokens = ["aug=imagenette", "data=folder", "data.root=d", "aug.val.center_crop.scale=.9", "fit.lr=2", "aug.size=64"]
    config = composed(*(plus + token for token in tokens))
    assert config["aug"]["val"]["center_crop"]["scale"] == 0.9
    assert (config["fit"]["lr"], config["aug"]["size"]) == (2, 64)
    assert config["data"] == {"source": "folder", "root": "d"}


@pytest.mark.usefixtures("conf")
def test_steps_and_callbacks_may_be_taken_away() -> None:
    config = composed("aug=imagenette", "~aug.train.rotate", "~callbacks.plots", "callbacks.checkpoint=null")
    assert "rotate" not in config["aug"]["train"]
    assert config["callbacks"] == {"progress_bar": {}, "checkpoint": None, "report": {}}


@pytest.mark.usefixtures("conf")
@pytest.mark.parametrize("given", ["wandb", "[default,wandb]", "[tensorboard,mlflow,default]"])
def test_a_tracker_adds_to_the_default_callbacks(given: str) -> None:
    default, chosen = composed()["callbacks"], composed(f"callbacks={given}")["callbacks"]
    assert list(chosen)[: len(default)] == list(default)
    assert set(chosen) - set(default) == set(given.strip("[]").split(",")) - {"default"}


# --- names of files ---


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


# --- composing ---


def test_compose_gives_plain_values_of_every_section_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(["+aug=imagenette", "aug.size=64", "fit.lr=2", "seed=3", "aug.train.rotate.angle_range=[-1,1]"])
    assert set(config) == {"data", "model", "aug", "fit", "callbacks", "seed"}
    assert (config["aug"]["size"], config["fit"]["lr"], config["seed"]) == (64, 2, 3)
    assert type(config["aug"]["train"]["rotate"]) is dict
    assert config["aug"]["train"]["rotate"]["angle_range"] == [-1, 1]
    assert not list(tmp_path.iterdir())


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


def test_interpolations_are_resolved() -> None:
    assert compose(["aug.size=48", "fit.batch_size=${aug.size}"])["fit"]["batch_size"] == 48


def test_a_second_composition_knows_nothing_of_the_first() -> None:
    assert compose(["aug.size=48", "data=folder"])["data"] == {"source": "folder"}
    assert compose([])["data"] == {"source": "sample"}
    assert "aug" not in compose([])


def test_the_last_choice_of_a_group_that_has_a_default_counts() -> None:
    assert compose(["data=folder", "data=sample"])["data"] == {"source": "sample"}


def test_flags_of_hydra_are_taken_but_change_nothing() -> None:
    assert compose(["hydra.run.dir=x"]) == compose([])


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (
            "imagenete",
            "'imagenete' is no override. Did you mean '+aug=imagenette'? Allowed: +aug=NAME, key=value, ~key.",
        ),
        ("imagenette.yaml", "'imagenette.yaml' is no override. Did you mean '+aug=imagenette'?"),
        (
            "aug.train",
            "'aug.train' is no override. Did you mean 'aug.train=...'? Write no spaces around =. Allowed: ",
        ),
        ("fit.epochs:3", "'fit.epochs:3' is no override. Did you mean 'fit.epochs=3'? Write no spaces around ="),
        ("--multirun", "'--multirun' is no override. Allowed:"),
        ("seed=0,1", "seed=0,1: several values make a sweep, which only `python -m trainer -m` runs."),
        ("data=sample,folder", "data=sample,folder: several values make a sweep"),
        (
            "fit.lr=0,5",
            "fit.lr=0,5: several values make a sweep, which only `python -m trainer -m` runs. "
            "For a decimal number write 0.5; for a list, [0,5].",
        ),
        (
            "fit.lr=${nothing}",
            "fit.lr: ${nothing}: there is no key 'nothing'. Allowed: ${KEY} of a key that a YAML file",
        ),
        ("fit.lr=${data.sourc}", "fit.lr: ${data.sourc}: there is no key 'data.sourc'. Did you mean 'data.source'?"),
        ("fit.lr=${oc.env:NO_SUCH}", "fit.lr: the environment variable NO_SUCH is not set. Allowed: to set it, or ${"),
        ("fit.lr=${nothing:1}", "fit.lr: ${nothing:1}: there is no resolver 'nothing'. Allowed: ${KEY} of a key"),
        ("fit.lr=${fit.lr}", "fit.lr: ${fit.lr}: Recursive interpolation detected. Allowed: ${KEY} of a key"),
        ("hydra/launcher=slrm", "hydra/launcher: unknown name 'slrm'. Did you mean 'slurm'? Allowed: "),
        ("hydra.run.dirr=x", "hydra.run.dirr: unknown key. Did you mean 'hydra.run.dir'?"),
        ("~data.source.name", "data.source.name: unknown key."),
        ("rotate.p=0.5", "rotate: unknown key. Did you mean 'aug.train.rotate'? Allowed: "),
        ("train.rotate.p=0.5", "train: unknown key. Did you mean 'aug.train'? Allowed: "),
        ("+aug=imagenete", "aug: unknown name 'imagenete'. Did you mean 'imagenette'?"),
        ("data=foldr", "data: unknown name 'foldr'. Did you mean 'folder'?"),
        (
            "agu.size=3",
            "agu: unknown key. Did you mean 'aug'? Allowed: aug, callbacks, data, fit, model, plugins,",
        ),
        ("seeed=3", "seeed: unknown key. Did you mean 'seed'?"),
    ],
)
def test_compose_refuses(token: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        compose(["data=folder", token])


def test_a_recipe_is_chosen_once() -> None:
    with pytest.raises(UserError, match=r"^aug: chosen twice, none and imagenette\. Allowed: once\.$"):
        compose(["+aug=none", "aug=imagenette"])


def test_a_list_and_a_mapping_do_not_merge() -> None:
    given = ["+aug=imagenette", "aug.train.rotate.angle_range={values: [1]}"]
    with pytest.raises(UserError, match=r"^aug\.train\.rotate\.angle_range: a list does not merge .*=null before it"):
        compose(given)
    cleared = compose([*given[:1], "aug.train.rotate.angle_range=null", *given[1:]])
    assert cleared["aug"]["train"]["rotate"]["angle_range"] == {"values": [1]}


def test_a_step_is_not_set_to_null() -> None:
    """A bare step of a file applies always, which is not what null means for callbacks."""
    with pytest.raises(UserError, match=r"^aug\.train\.rotate: null is not allowed\. .* or ~aug\.train\.rotate, which"):
        compose(["+aug=imagenette", "aug.train.rotate=null"])
    assert compose(["aug.train.flip=null", "aug.train.flip.p=0.5"])["aug"]["train"]["flip"] == {"p": 0.5}


def test_jobs_are_composed_each_by_itself() -> None:
    one, two = compose_jobs([["aug=imagenette", "++seed=1"], ["++seed=2"]])
    assert ("aug" in one, one["seed"]) == (True, 1)
    assert ("aug" in two, two["seed"]) == (False, 2)


def test_hydras_own_search_path(tmp_path: Path) -> None:
    (tmp_path / "aug").mkdir()
    (tmp_path / "aug" / "mine.yaml").write_text("size: 40\n")
    assert compose(["aug=mine", f"hydra.searchpath=['file://{tmp_path}']"])["aug"] == {"size": 40}


# --- what the programs of this package take from it ---


def test_an_experiment_has_a_recipe() -> None:
    assert compose_recipe(["+experiment=imagewoof_5"]).aug == compose_recipe(["+aug=leaderboard"]).aug


def test_a_recipe_has_typed_augmentation_seed_and_source() -> None:
    recipe = compose_recipe(["+aug=imagenette", "aug.val.center_crop.scale=.5", "seed=7", "data=folder", "data.root=d"])
    assert [step.key for step in recipe.aug.train][:2] == ["random_resized_crop", "flip"]
    assert recipe.aug.val[0].params["scale"] == 0.5
    assert recipe.seed == 7
    assert recipe.source() == Folder(root="d")


def test_the_least_recipe() -> None:
    recipe = compose_recipe([])
    assert (recipe.aug, recipe.seed, recipe.source()) == (Aug(), 0, Sample())


def test_keys_that_concern_training_only_are_taken() -> None:
    plan = build_plan(compose_recipe(["+aug=none"]).aug, "train")
    given = ["fit.batch_size=8", "model=timm", "callbacks=[default,wandb]", "fit=article", "~callbacks.plots"]
    assert build_plan(compose_recipe(["+aug=none", *given]).aug, "train") == plan


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("aug.sise=3", "aug.sise: unknown key. Did you mean 'size'?"),
        ("aug.train.rotat.p=1", "aug.train.rotat: unknown op 'rotat'. Did you mean 'rotate'?"),
        ("aug.train.rotate.p=2", "aug.train.rotate.p: 2 is not allowed. Allowed: a number from 0 to 1."),
        ("seed=-1", "seed: -1 is not allowed."),
        ("plugins=mine", "plugins: 'mine' is not allowed."),
    ],
)
def test_what_concerns_augmentation_is_checked(token: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        compose_recipe(["+aug=imagenette", token])


def test_the_source_is_checked_when_it_is_asked_for() -> None:
    recipe = compose_recipe(["data=folder"])
    with pytest.raises(UserError, match=r"^data\.root: missing"):
        recipe.source()


def test_plugins_are_loaded_for_what_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of `aug` brings ops, one of the whole brings sources."""
    (tmp_path / "ops_of_mine.py").write_text(
        "from augment.params import Range\nfrom augment.recipe.op import color\nimport numpy as np\n\n\n"
        "@color(amount_range=Range(default=(0, 1), doc='how much'))\n"
        "def nothing_much(amount):\n    'Nothing.'\n    return np.eye(3, 4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(augment.recipe.op, "_OPS", dict(augment.recipe.op._OPS))
    recipe = compose_recipe(["aug.plugins=[ops_of_mine]", "aug.train.nothing_much.p=.5", "plugins=[not_there]"])
    assert recipe.aug.train[0].op.name == "nothing_much"
    with pytest.raises(UserError, match=r"^plugins: no module named 'not_there'"):
        recipe.source()


@pytest.mark.parametrize("given", ["data.options={token: abc}", "data.options.token=abc,def"])
def test_a_secret_has_an_override_of_its_own(given: str) -> None:
    with pytest.raises(UserError, match="has a secret in it, which would be written down") as caught:
        normalize([given])
    assert "abc" not in str(caught.value)


def test_a_secret_is_a_reference_in_the_command_line_and_known_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "mine.yaml").write_text("source: own\noptions: {password: secret of the file}\n")
    monkeypatch.chdir(tmp_path)
    (token,) = normalize(["data.options.token=abc"])
    assert token == "++data.options.token=${hidden:data.options.token}"
    options = compose(["data=mine", "data.options.token=abc"])["data"]["options"]
    assert options == {"password": "secret of the file", "token": "abc"}
    assert as_written(options) == {
        "password": "${hidden:data.options.password}",
        "token": "${hidden:data.options.token}",
    }


def test_an_alias_bomb_among_the_own_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "aug").mkdir(parents=True)
    bomb = "\n".join(["a: &a [x, x]", *(f"{b}: &{b} [*{a}, *{a}]" for a, b in pairwise("abcdefghijklmnopqrst"))])
    (tmp_path / "conf" / "aug" / "bomb.yaml").write_text(bomb)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"bomb\.yaml: more than 20,000 values, aliases included"):
        compose(["+aug=bomb"])
    compose(["+aug=none"])
