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
    ("key", "value"),
    [
        ("seed", None),
        ("plugins", "mine"),
        ("fit", [1]),
        ("data.dir", {"a": 1}),
        ("aug", "imagenette"),
        ("aug.train.rotate", 3),
        ("callbacks", ["plots"]),
        ("callbacks.plots", 3),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range(key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{re.escape(key)}\S*: .* is not allowed\.( Did you mean .*\?)? Allowed: "):
        parse_config(at(key, value))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"source": "folder"}}, "data.root: missing. Allowed: text (folder with train/"),
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


def test_a_setting_that_is_gone_names_what_there_is_in_its_place() -> None:
    with pytest.raises(UserError, match=r"^fit\.skip_nonfinite: is gone since 0\.13\.0\. Allowed: a smaller fit\.lr"):
        parse_config(at("fit.skip_nonfinite", 0))
