"""The table of other libraries' transforms: what it writes is valid, and it leaves out no op and no transform."""

import re
from inspect import isclass, signature

import pytest

from augment.recipe.equivalents import ALIASES, Equivalent, equivalents
from augment.recipe.op import OPS
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError

# Neither transforms of images nor of classification: bases, and those of boxes and points.
NO_TRANSFORMS = r"Transform|AutoAugmentPolicy|Identity|InterpolationMode|.*(BoundingBox|KeyPoints|Clamping).*"


@pytest.mark.parametrize("row", [row for row in equivalents() if row.steps], ids=lambda row: row.steps.split(":")[0])
def test_what_is_written_is_a_recipe(row: Equivalent) -> None:
    build_plan(parse_aug({"size": 32, "train": row.parsed()}), "train")


def test_every_name_of_the_others_exists_and_none_is_left_out() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    data = pytest.importorskip("timm.data")
    classes = {name for name in dir(v2) if isclass(getattr(v2, name)) and not re.fullmatch(NO_TRANSFORMS, name)}
    named = {name for row in equivalents() for name in re.findall(r"\b[A-Z]\w+", row.torchvision)}
    assert (named - classes, classes - named) == (set(), set())
    arguments = {*signature(data.create_transform).parameters, *signature(data.Mixup).parameters}
    assert {name for row in equivalents() for name in re.findall(r"(?:^|, )(\w+)", row.timm)} <= arguments


def test_aliases_name_ops() -> None:
    assert ALIASES.keys() <= OPS.keys()
    names = [name for names in ALIASES.values() for name in names.split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("cutout", "erase"),
        ("Cutout", "erase"),
        ("RandomCutMixV2", "cutmix"),
        ("fliplr", "flip"),
        ("hsv_h", "hue"),
        ("max_rotate", "rotate"),
        ("RandomSaltAndPepperNoise", "salt_and_pepper"),
        ("RandomZoom", "scale"),
        ("LetterBox", "letterbox"),
        ("Rot90", "rot90"),
        ("re_prob", "erase"),
    ],
)
def test_names_of_other_libraries_lead_to_ops(name: str, op: str) -> None:
    with pytest.raises(UserError, match=rf"aug\.train\.{name}: .* '{op}'\?"):
        parse_aug({"train": {name: None}})


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (False, "~aug.train.flip"),
        (True, "p: 0.5"),
        (0.5, "aug.train.flip.p=0.5"),
        (1, "flip.p=1"),
        (10, "10 is not allowed. Give the step a mapping"),
    ],
)
def test_a_value_where_a_step_is_expected(value: object, meant: str) -> None:
    with pytest.raises(UserError, match=re.escape(meant)):
        parse_aug({"train": {"flip": value}})


def test_rand_augment_is_as_strong_as_that_of_torchvision_and_timm() -> None:
    autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
    rand_augment_transform = pytest.importorskip("timm.data.auto_augment").rand_augment_transform
    angles = {}
    for row in equivalents():
        if "rand_augment" in row.parsed():
            (policy,) = parse_aug({"train": row.parsed()}).train
            (rotate,) = (step for step in policy.steps[0].steps if step.key == "rotate")
            angles[row.torchvision or row.timm.partition("=")[2]] = max(rotate.params["angle_range"].values)
    theirs, timms = angles
    _, magnitude = map(int, re.findall(r"\d+", theirs))
    space = autoaugment.RandAugment(magnitude=magnitude)._augmentation_space(31, (32, 32))
    (rotate,) = (op for op in rand_augment_transform(timms, {}).ops if op.name == "Rotate")
    assert angles[theirs] == pytest.approx(float(space["Rotate"][0][magnitude]))
    assert angles[timms] == pytest.approx(abs(rotate.level_fn(rotate.magnitude, {})[0]))
