"""Overrides as people write them, and as Hydra takes them."""

import re

import pytest

from augment.cli.compose import compose
from augment.cli.overrides import normalize, parse
from augment.support.errors import UserError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # A value: set it whether or not the YAML mentions it.
        ("fit.lr=0.1", "++fit.lr=0.1"),
        ("+fit.lr=0.1", "++fit.lr=0.1"),
        ("seed=0,1,2", "++seed=0,1,2"),
        ("aug.val.center_crop.scale=.9", "++aug.val.center_crop.scale=.9"),
        ("aug.train.rotate_2={op: rotate, p: 0.5}", "++aug.train.rotate_2={op: rotate, p: 0.5}"),
        ("data.root='/a/b=c'", "++data.root='/a/b=c'"),
        # A file of a group.
        ("data=folder", "data=folder"),
        ("+data=folder", "data=folder"),
        ("+experiment=finetune", "experiment=finetune"),
        ("experiment=glob(imagenette_*)", "experiment=glob(imagenette_*)"),
        # A whole section given in place.
        ("aug={size: 64}", "++aug={size: 64}"),
        ("+model={kind: timm, name: resnet18}", "++model={kind: timm, name: resnet18}"),
        # Left alone.
        ("~aug.train.rotate", "~aug.train.rotate"),
        ("hydra.run.dir=x", "hydra.run.dir=x"),
        ("hydra/job_logging=none", "hydra/job_logging=none"),
    ],
)
def test_plus_signs(given: str, expected: str) -> None:
    assert normalize([given]) == [expected]


def test_a_home_is_known_behind_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell expands a ~ in words that begin with one only, and Hydra rejects it."""
    monkeypatch.setenv("HOME", "/home/me")
    assert normalize(["data.root=~/a,~/c", "fit.resume='~/d'"]) == [
        "++data.root=/home/me/a,/home/me/c",
        "++fit.resume='~/d'",
    ]
    assert parse("fit.resume=~/d").value() == "/home/me/d"


@pytest.mark.parametrize(
    "value",
    ["Bilder äöü/Fisch", "Tom & Jerry #1", "照片", "~/ü", "a;b!", "s3://b/t-{0..9}.{00..10}.tar", "http://h/a?b=c&d=:"],
)
def test_what_the_grammar_knows_in_quotes_only_is_put_in_quotes(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    meant = value.replace("~", "/home/me")
    assert normalize([f"data.root={value}"]) == [f'++data.root="{meant}"']
    assert compose(["data=folder", f"data.root={value}"])["data"]["root"] == meant


def test_what_has_a_meaning_is_not_put_in_quotes() -> None:
    for given in ("data.root='ä, b'", "aug.mean=[1,2,3]", "fit.lr=0.1,0.2", "fit.beta2=null", "data.root=a b"):
        assert normalize([given]) == [f"++{given}"]


@pytest.mark.parametrize("given", ["fit lr=3", "data.root=/a/b=c", f"aug.size={'9' * 5000}"])
def test_what_cannot_be_parsed_is_named(given: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(given)}: cannot be parsed.*in double quotes"):
        normalize([given])
