"""The settings of stages."""

import pytest
from stages import config_of

from augment.cli.compose import compose
from augment.params import Size
from augment.support.errors import UserError
from trainer.run.check import check_config
from trainer.run.config import parse_config


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (["small"], "fit.stages: ['small'] is not allowed. Allowed: a mapping of stages"),
        ({"small": 3}, "fit.stages.small: 3 is not allowed. Allowed: a mapping of epochs, size, batch_size"),
        ({"small": {"sise": 8}}, "fit.stages.small.sise: unknown key. Did you mean 'size'?"),
        ({"small": {"size": 7}}, "fit.stages.small.size: 7 is not allowed. Allowed: a whole number from 8 to 4096"),
        ({"small": {"batch_size": 2.5}}, "fit.stages.small.batch_size: 2.5 is not allowed."),
        ({"a.b": {}}, "fit.stages.a.b: a stage's name has no dot."),
        ({"a": {}, "b": {"epochs": None}}, "fit.stages.b.epochs: null, as in fit.stages.a. Allowed: at most one"),
        ({"a": {"epochs": 1}}, "fit.stages: the stages have 1 epoch, fit.epochs is 5. Allowed:"),
        ({"a": {"epochs": 5}, "b": {}}, "fit.stages: the stages have 5 epochs, fit.epochs is 5. Allowed:"),
    ],
)
def test_mistakes(stages: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(stages)
    assert str(caught.value).startswith(message)


def test_what_is_written_down_is_complete_and_makes_the_same_stages() -> None:
    parsed = config_of()
    written = parsed.resolved["fit"]["stages"]
    assert written["middle"] == {"epochs": 1, "size": 16, "batch_size": None}
    assert list(written) == ["small", "middle", "last"]
    assert parse_config(parsed.resolved).fit == parsed.fit


def test_stages_are_overridden_by_name() -> None:
    given = "fit.stages={small: {epochs: 12, size: 96}, full: {}}"
    composed = compose(["fit.epochs=20", given, "fit.stages.small.size=112", "fit.stages.small.batch_size=128"])
    small, full = parse_config(composed).fit.full_stages(Size(128, 128))
    assert (small.start, small.epochs, small.size.plain, small.batch_size) == (0, 12, 112, 128)
    assert (full.start, full.epochs, full.size.plain, full.batch_size) == (12, 8, 128, 64)
    assert not parse_config(compose(["fit.epochs=20"])).fit.stages


def test_one_number_is_the_shorter_side_of_images_that_are_not_square() -> None:
    given = ["fit.stages={small: {epochs: 2, size: 90}, other: {epochs: 1, size: [60, 70]}, full: {}}"]
    config = parse_config(compose(["aug.size=[120,161]", *given]))
    sizes = [stage.size for stage in config.fit.full_stages(config.aug.size)]
    assert sizes == [(90, 121), (60, 70), (120, 161)]
    assert [stage["size"] for stage in config.resolved["fit"]["stages"].values()] == [90, [60, 70], None]
    assert config.resolved["aug"]["size"] == [120, 161]
    again = parse_config(config.resolved)
    assert (again.aug, again.fit) == (config.aug, config.fit)
    assert str(config.fit.full_stages(config.aug.size)[0]) == "90 x 121 px, batch 64"


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_each_size_must_fit_through_the_model() -> None:
    config = config_of({"small": {"epochs": 2, "size": 64}, "last": {}})
    check_config(config)
    sections = {**config.resolved, "model": {"kind": "timm", "name": "vit_tiny_patch16_224"}, "aug": {"size": 224}}
    with pytest.raises(UserError, match=r"^fit\.stages\.small\.size=64: the model cannot take images of that size"):
        check_config(parse_config(sections))
