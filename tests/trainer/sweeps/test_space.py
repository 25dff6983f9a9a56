"""Search spaces: Hydra's syntax, and values without effect."""

import optuna
import pytest

from augment.support.errors import UserError
from trainer.sweeps.plan import overrides_of, parse_space, suggest_from

ROTATE = ["++aug.train.rotate.angle_range=interval(1,20)", "++aug.train.rotate.p=0,0.5"]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("++fit.lr=interval(1e-3,1e-1)", optuna.distributions.FloatDistribution(1e-3, 1e-1)),
        ("++fit.lr=tag(log,interval(1e-3,1e-1))", optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True)),
        ("++fit.epochs=int(interval(1,5))", optuna.distributions.IntDistribution(1, 5)),
        ("++fit.batch_size=tag(log,int(interval(8,64)))", optuna.distributions.IntDistribution(8, 64, log=True)),
        ("++fit.epochs=range(1,6,2)", optuna.distributions.CategoricalDistribution((1, 3, 5))),
        ("++fit.lr=0.1,0.2", optuna.distributions.CategoricalDistribution((0.1, 0.2))),
        ("aug=choice(strong,none)", optuna.distributions.CategoricalDistribution(("strong", "none"))),
        ("++aug.train.warp=null,{p:0.5}", optuna.distributions.CategoricalDistribution((None, "{p:0.5}"))),
    ],
)
def test_values(token: str, expected: optuna.distributions.BaseDistribution) -> None:
    (one,) = parse_space([token])
    assert one.distribution == expected


def test_choices_are_kept_as_they_were_written() -> None:
    """Without the rounding errors of a range; what was drawn from an interval has six digits."""
    tokens = ("0.01234567,1e-7", "range(1.3,2,0.3)", "interval(0.01234567,0.5)")
    texts = [[one.override(end) for end in one.samples] for text in tokens for one in parse_space([f"++fit.lr={text}"])]
    assert texts == [[f"++fit.lr={value}" for value in values] for values in (
        ("0.01234567", "1e-07"), ("1.3", "1.6", "1.9"), ("0.0123457", "0.5", "0.19863"),
    )]  # fmt: skip


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("++seed=0,1", "seed: not for a search, as it is chance that it would choose."),
        ("++data.fold=0,1", "data.fold: not for a search"),
        ("++fit.lr=tag(log,interval(0,1))", r"not an interval\. Allowed: "),
        ("++fit.lr=0.1", r"^fit\.lr=0\.1: cannot be searched\. Allowed: "),
        ("++fit.lr=interval(0,1),2", r"^fit\.lr=interval\(0,1\),2: cannot be searched\. Allowed: "),
        ("++fit.lr=range(3,3)", r"cannot be searched\. Allowed: "),
    ],
)
def test_what_cannot_be_searched(token: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_space([token])


def test_a_step_that_is_left_out_has_no_range() -> None:
    space = parse_space(ROTATE)
    study = optuna.create_study()
    for p, keys in ((0, {"aug.train.rotate.p"}), (0.5, {"aug.train.rotate.p", "aug.train.rotate.angle_range"})):
        study.enqueue_trial({"aug.train.rotate.p": p, "aug.train.rotate.angle_range": 3.5})
        assert suggest_from(study.ask(), space).keys() == keys


def test_overrides() -> None:
    space = parse_space(["++fit.lr=interval(0,1)", "++fit.nesterov=true,false", "aug=strong,none", "++fit.eps=null,1"])
    chosen = {"fit.lr": 0.123456789, "fit.nesterov": True, "aug": "none", "fit.eps": None}
    expected = {"++fit.lr=0.123457", "++fit.nesterov=true", "aug=none", "++fit.eps=null"}
    assert set(overrides_of(chosen, space)) == expected
    assert overrides_of({"aug": "none"}, space) == ["aug=none"]
