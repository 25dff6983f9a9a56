"""Overrides as people write them: the plus signs, the names of files, and those of a resumed run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

from augment.errors import UserError
from trainer.overrides import CONF, check_groups, key_of, normalize, parse, with_resumed

GROUPS, DEFAULTS = ("aug", "callbacks", "data", "fit", "model"), ("data", "model", "fit", "callbacks")


def normalized(*tokens: str) -> list[str]:
    return normalize(tokens, groups=GROUPS, defaults=DEFAULTS)


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
        ("aug=imagenette", "+aug=imagenette"),
        ("+aug=imagenette", "+aug=imagenette"),
        ("++aug=imagenette", "+aug=imagenette"),
        ("aug=none,imagenette", "+aug=none,imagenette"),
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
    assert normalized(given) == [expected]


def test_many_at_once_keep_their_order() -> None:
    given = ["-m", "fit.lr=1", "+aug=imagenette", "~aug.train.flip", "seed=0,1"]
    assert normalized(*given) == ["-m", "++fit.lr=1", "+aug=imagenette", "~aug.train.flip", "++seed=0,1"]


@pytest.mark.parametrize("given", ["fit.lr=[1", "fit lr=3", "data.root=/a/b=c"])
def test_what_cannot_be_parsed_is_hydras_error(given: str) -> None:
    with pytest.raises(HydraException):
        normalized(given)


def test_key_of() -> None:
    assert [key_of(parse(token)) for token in ("++fit.lr=1", "+aug=none", "~aug.train.flip", "data=folder")] == [
        *("fit.lr", "aug", "aug.train.flip", "data")
    ]


# --- what Hydra makes of them ---


@pytest.fixture
def conf() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*tokens: str) -> Any:
    return OmegaConf.to_container(hydra.compose("config", normalized(*tokens)))


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
    assert config["callbacks"] == {"progress_bar": {}, "checkpoint": None}


@pytest.mark.usefixtures("conf")
def test_several_files_of_a_group() -> None:
    assert "wandb" in composed("callbacks=[default,wandb]")["callbacks"]


# --- names of files ---


def check(*tokens: str) -> None:
    check_groups([parse(token) for token in tokens], GROUPS)


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
        ("data=foldr", "data: unknown name 'foldr'. Did you mean 'folder'? Allowed: folder, imagenette, sample."),
        ("+aug=imagenete", "aug: unknown name 'imagenete'. Did you mean 'imagenette'? Allowed: imagenette, none."),
        ("model=resnet18", "model: unknown name 'resnet18'. Allowed: cnn, timm."),
        ("callbacks=[default,wandbb]", "callbacks: unknown name 'wandbb'. Did you mean 'wandb'?"),
    ],
)
@pytest.mark.usefixtures("conf")
def test_an_unknown_file_is_refused_with_the_nearest(token: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        check("data=folder", token)


# --- a resumed run ---


def save(run: Path, *overrides: str) -> None:
    OmegaConf.save(OmegaConf.create(list(overrides)), run / ".hydra" / "overrides.yaml")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with two overrides, and a list as a value."""
    folder = tmp_path / "run"
    (folder / ".hydra").mkdir(parents=True)
    (folder / "last.pt").touch()
    save(folder, "+aug=imagenette", "++fit.lr=0.5", "++a.b=[1,2]")
    return folder


def test_without_resume_nothing_is_added() -> None:
    assert with_resumed(["-m", "fit.lr=1", "~aug.train.flip"]) == ["-m", "fit.lr=1", "~aug.train.flip"]


@pytest.mark.parametrize("token", ["fit.resume=null", "++fit.resume=null", "~fit.resume"])
def test_resume_may_be_none(token: str) -> None:
    assert with_resumed([token, "seed=1"]) == [token, "seed=1"]


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_overrides_of_the_resumed_run_come_first(run: Path, plus: str) -> None:
    tokens = [f"{plus}fit.resume={run}", "fit.epochs=9"]
    assert with_resumed(tokens) == ["+aug=imagenette", "++fit.lr=0.5", "++a.b=[1,2]", *tokens]


@pytest.mark.parametrize("token", ["fit.lr=2", "+fit.lr=2", "++fit.lr=2", "~fit.lr"])
def test_those_of_the_command_line_replace_them(run: Path, token: str) -> None:
    tokens = [f"fit.resume={run}", token]
    assert with_resumed(tokens) == ["+aug=imagenette", "++a.b=[1,2]", *tokens]


def test_a_file_of_a_group_replaces_that_of_the_resumed_run(run: Path) -> None:
    assert with_resumed([f"fit.resume={run}", "aug=none"])[:2] == ["++fit.lr=0.5", "++a.b=[1,2]"]


def test_a_run_that_was_itself_resumed(run: Path, tmp_path: Path) -> None:
    OmegaConf.save(
        OmegaConf.create(["++fit.lr=0.5", f"++fit.resume={tmp_path / 'older'}"]), run / ".hydra/overrides.yaml"
    )
    assert with_resumed([f"fit.resume={run}"]) == ["++fit.lr=0.5", f"fit.resume={run}"]


def test_flags_stay(run: Path) -> None:
    assert with_resumed(["--cfg", "job", f"fit.resume={run}"])[-3:] == ["--cfg", "job", f"fit.resume={run}"]


def test_no_such_run(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(UserError) as caught:
        with_resumed([f"fit.resume={folder}"])
    assert str(caught.value) == (
        f"fit.resume={folder}: no such folder. Allowed: the folder of a run that saved a checkpoint."
    )


@pytest.mark.parametrize("lacks", ["last.pt", ".hydra/overrides.yaml"])
def test_a_folder_that_is_no_run(run: Path, lacks: str) -> None:
    (run / lacks).unlink()
    with pytest.raises(
        UserError, match=r": no last\.pt and \.hydra/overrides\.yaml in it\. Allowed: the folder of a run"
    ):
        with_resumed([f"fit.resume={run}"])
