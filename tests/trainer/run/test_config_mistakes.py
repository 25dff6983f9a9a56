"""The whole configuration: every mistake is one readable error."""

import re
from typing import Any

import pytest
from runs import LEAST, config_of

from augment.data.sources import SOURCES
from augment.support.errors import UserError
from trainer.run.config import parse_config


def at(path: str, value: object) -> dict[str, Any]:
    """Return the least configuration with a value set at a key path."""
    given: dict[str, Any] = {name: dict(section) for name, section in LEAST.items()}
    *sections, last = path.split(".")
    place = given
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return given


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("modle", "Did you mean 'model'?"),
        ("fit.epoch", "Did you mean 'epochs'?"),
        ("data.root", ""),
        ("aug.train.rotat", "Did you mean 'rotate'?"),
        ("aug.train.rotate.angel_range", "Did you mean 'angle_range'?"),
        ("callbacks.plot", "Did you mean 'plots'?"),
        ("callbacks.plots.image", "Did you mean 'images'?"),
    ],
)
def test_an_unknown_key_at_any_level(key: str, hint: str) -> None:
    with pytest.raises(UserError, match=rf"^{re.escape(key)}: unknown (key|op|callback).*{re.escape(hint)} Allowed: "):
        parse_config(at(key, {}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", None),
        ("plugins", "mine"),
        ("fit", [1]),
        ("fit.epochs", "3"),
        ("fit.momentum", 1),
        ("data.dir", {"a": 1}),
        ("aug", "imagenette"),
        ("aug.std", [0.5, 0.5, 0]),
        ("aug.train", ["rotate"]),
        ("aug.train.rotate", 3),
        ("aug.train.rotate.angle_range", [7, -7]),
        ("callbacks", ["plots"]),
        ("callbacks.plots", 3),
        ("callbacks.grad_clip", {"max_norm": -1}),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range(key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{re.escape(key)}\S*: .* is not allowed\.( Did you mean .*\?)? Allowed: "):
        parse_config(at(key, value))


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("fit.device", "gpu:1", "unknown name 'gpu:1'. Did you mean 'cuda:1'?"),
        ("fit.device", 1, "unknown name '1'. Did you mean 'cuda:1'?"),
        ("fit.device", "cuda:01", "unknown name 'cuda:01'."),
        ("data.source", "foldr", "unknown source 'foldr'. Did you mean 'folder'?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(key: str, given: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(f'{key}: {message}')}"):
        parse_config(at(key, given))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"source": "folder"}}, "data.root: missing. Allowed: text (folder with train/"),
        ({"data": {"source": "folder", "root": None}}, "data.root: missing."),
        ({"data": {"source": "folder", "root": ""}}, "data.root: '' is not allowed."),
        ({"data": None}, f"data.source: missing. Allowed: {', '.join(SOURCES)}."),
        ({"data": {}}, "data.source: missing."),
    ],
)
def test_what_must_be_given(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        config_of(**sections)


def test_an_empty_configuration_says_what_is_missing() -> None:
    with pytest.raises(UserError, match=r"^data, model: missing\. Allowed: .* defaults: \[config, _self_\]"):
        parse_config({})


def test_of_settings_in_the_wrong_section_the_first_is_named() -> None:
    wrong = dict.fromkeys(["warmup", "lr", "epochs", "momentum", "batch_size", "stages", "optimizer", "accumulate"], 1)
    with pytest.raises(UserError, match=r"^data\.warmup: unknown key\. Did you mean 'fit\.warmup'\?$"):
        config_of(data={"source": "sample"} | wrong)
