"""Secrets and environment variables: known to the program, and references in what it writes."""

import pickle

import pytest
from omegaconf import OmegaConf

from augment.support.secrets import Reference, as_written, is_secret, masked, resolved


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("data.options.token", "abc", True),
        ("HF_TOKEN", "abc", True),
        ("api_key", "abc", True),
        ("AccessKey", "abc", True),
        ("key", "abc", True),
        ("db-password", "abc", True),
        ("credentials", "abc", True),
        ("image_key", "jpg", False),
        ("tokenizer", "bpe", False),
        ("class_token", True, False),
        ("token", 3, False),
        ("token", "${oc.env:TOKEN}", False),
        ("url", "https://me:word@host/x.tgz", True),
        ("url", "https://host/x@y.tgz", False),
        ("train", "https://host/x.tar?X-Amz-Date=20261126&X-Amz-Signature=ab12", True),
        ("train", "https://host/x.tar?sig=ab12", True),
        ("train", "https://host/x.tar?version=3&design=b&key=", False),
    ],
)
def test_what_looks_like_a_secret(key: str, value: object, secret: bool) -> None:
    assert is_secret(key, value) == secret
    assert (as_written({key.split(".")[-1]: value}) != {key.split(".")[-1]: value}) == secret


def test_texts_of_the_environment_stay_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/top/secret")
    raw = {
        "root": "${oc.env:PLACE}",
        "train": "${root}/train",
        "steps": "${oc.decode:${oc.env:STEPS}}",
        "plain": "${name}",
        "name": "cat",
        "list": ["${oc.env:PLACE}", "x"],
        "copy": "${inner}",
        "inner": {"place": "${oc.env:PLACE}"},
        "a": {"token": "${oc.env:TOKEN}"},
    }
    monkeypatch.setenv("STEPS", "3")
    monkeypatch.setenv("TOKEN", "abc")
    plain = resolved(OmegaConf.to_container(OmegaConf.create(raw), resolve=True), raw)
    assert plain["train"] == "/top/secret/train"
    assert plain["a"]["token"] == "abc"
    assert as_written(plain) == raw | {"steps": 3, "plain": "cat", "copy": {"place": "***"}}
    assert "/top/secret" not in str(as_written(plain))


def test_a_reference_is_its_value_elsewhere() -> None:
    reference = Reference("/a", "${oc.env:A}")
    assert (reference, hash(reference), repr(reference)) == ("/a", hash("/a"), "'/a'")
    assert type(pickle.loads(pickle.dumps(reference))) is str


def test_overrides_are_shown_without_secrets() -> None:
    assert masked("++data.options.token=abc") == "++data.options.token=***"
    assert [masked(token) for token in ("seed=1", "~x.token", "x.token=${oc.env:T}")] == [
        "seed=1",
        "~x.token",
        "x.token=${oc.env:T}",
    ]
