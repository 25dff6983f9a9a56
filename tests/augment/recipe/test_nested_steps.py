"""Parsing of policies and of steps that mix samples, and the message for each mistake in steps."""

import json
import re
from typing import Any

import pytest

from augment.recipe.op import OPS, policy
from augment.recipe.step import parse_steps, plain_steps
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"rotate": {"p=0.5": None}}, "rotate.p=0.5: unknown key. Allowed: "),
        ({"rotate": {"op": "rotat"}}, "rotate.op: unknown op 'rotat'. Did you mean 'rotate'? Allowed: affine, "),
        ({"flip": {}, "center_crop": {}}, "center_crop: a crop must be the first step. Move it before 'flip'."),
        ({"center_crop": {}, "zoom": {"op": "center_crop"}}, "zoom: 'center_crop' is already a crop. Remove one"),
        ({"center_crop": {"p": 0.5}}, "center_crop.p: a crop applies to every image. Allowed: scale."),
        ({"rotate": {"weight": 2}}, "rotate.weight: only steps nested in one_of have a weight. Allowed: p, border, "),
        ({"one_of": {"steps": {"center_crop": {}}}}, "one_of.steps.center_crop: a crop cannot be nested. Make it "),
        ({"mixup": {}, "flip": {}}, "flip: 'mixup' mixes samples, so it must come later. Move it to the end."),
        (
            {"one_of": {"steps": {"mixup": {}, "flip": {}}}},
            "one_of.steps.flip: only one of 'mixup' and this step",
        ),
        ({"one_of": None}, "one_of.steps is empty. Add steps, such as rotate: "),
        (
            {"a.b": {"op": "flip"}},
            "a.b: a step's name cannot contain a dot. Rename the step, and set its op",
        ),
        ({"1": {"op": "flip"}, 1: {"op": "rotate"}}, "1: two steps have this name. Rename one, and set its op"),
        (
            {"one_of": {"steps": {"sequence": {"steps": {"rotate": {"angel_range": [0, 1]}}}}}},
            "one_of.steps.sequence.steps.rotate.angel_range: unknown key. Did you mean 'angle_range'? Allowed: ",
        ),
    ],
)
def test_mistakes_in_steps(steps: dict[Any, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^aug.train.{re.escape(message)}"):
        parse_aug({"train": steps})


@pytest.mark.parametrize(
    "name", [op.name for op in OPS.values() if op.kind == "batch"] + ["one_of", "some_of", "sequence"]
)
def test_samples_are_not_mixed_in_validation(name: str) -> None:
    steps: dict[str, Any] = {"steps": {"mixup": {}, "cutmix": {}}} if OPS[name].nests else {}
    expected = f"aug.val.{name} mixes samples. Move it to aug.train."
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        parse_aug({"val": {"flip": {}, name: steps}})
    assert parse_aug({"train": {"flip": {}, name: steps}}).train[1].key == name


NESTED: dict[str, Any] = {
    "random_resized_crop": {},
    "one_of": {
        "p": 0.5,
        "steps": {
            "rotate": {"weight": 3, "angle_range": {"values": [-30, 30]}},
            "again": {"op": "rotate", "weight": 0.5, "p": 0},
            "some_of": {
                "count_range": {"values": [0, 2]},
                "order": "random",
                "steps": {"hue": {}, "jpeg": {"quality_range": [50, 60]}, "trivial_augment": {"fill": 7}},
            },
        },
    },
    "sequence": {"steps": {"flip": None, "rand_augment": {"num_ops": 1}}},
    "auto_augment": {"found_on": "svhn"},
    "mix": {"op": "one_of", "steps": {"mixup": {"alpha": 0.2}, "cutmix": {"weight": 2}}},
}


def test_plain_steps_round_trip_of_nested_policies() -> None:
    steps = parse_steps(NESTED, "aug.train")
    plain = plain_steps(steps)
    assert parse_steps(plain, "aug.train") == steps
    assert plain_steps(parse_steps(plain, "aug.train")) == plain
    inside = plain["one_of"]["steps"]
    assert inside["rotate"]["weight"] == 3
    assert inside["rotate"]["angle_range"] == {"values": [-30, 30]}
    assert (inside["again"]["op"], inside["again"]["weight"], inside["again"]["p"]) == ("rotate", 0.5, 0)
    assert list(inside["some_of"]["steps"]) == ["hue", "jpeg", "trivial_augment"]
    # What a policy makes its steps of is in its own parameters.
    assert inside["some_of"]["steps"]["trivial_augment"] == {
        "op": "trivial_augment", "p": 1, "border": "constant", "fill": 7,
    }  # fmt: skip
    assert json.loads(json.dumps(plain)) == plain, "as a file could hold it"


@pytest.mark.usefixtures("clean_registry")
def test_steps_returned_by_a_policy_are_validated() -> None:
    @policy()
    def with_a_crop() -> dict[str, Any]:
        """Crop, which a policy cannot."""
        return {"center_crop": {}, "flip": {}}

    @policy()
    def mixing_first() -> dict[str, Any]:
        """Mix samples, then flip."""
        return {"mixup": {}, "flip": {}}

    with pytest.raises(UserError, match=r"aug.train.with_a_crop \(with_a_crop\).center_crop: a crop cannot be nested"):
        parse_aug({"train": {"with_a_crop": {}}})
    with pytest.raises(UserError, match=r"mixing_first\).flip: only one of .mixup. and this step mixes samples"):
        parse_aug({"train": {"mixing_first": {}}})
