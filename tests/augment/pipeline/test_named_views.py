"""Views with steps of their own: the rates of their steps, and what they share."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from lazily import LazyModule
from passes import RECIPE, make, saved, take, views_of

from augment import Transform, UserError, load_recipe
from augment.data.dataset import Split
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug

stats = LazyModule("scipy.stats")

COUNT = 6000


def plan_of(train: dict[str, Any], views: Any) -> Plan:
    return build_plan(parse_aug({"size": 16, "train": train, "views": views}), "train")


def test_views_of_byol_have_their_own_rates(device: torch.device) -> None:
    # What remains of the recipe can be told by a bright image with one dark pixel. The blur is strong enough to show.
    kept = ["~aug.train.random_resized_crop", "aug.train.color_jitter.p=0", "aug.train.grayscale.p=0", "aug.size=9",
            "aug.train.gaussian_blur.sigma_range=[1,2]", "aug.mean=[0,0,0]", "aug.std=[1,1,1]"]  # fmt: skip
    image = np.full((9, 9, 3), 240, np.uint8)
    image[4, 1] = 0
    made = Transform(load_recipe("byol", *kept), device=device, seed=1)(np.broadcast_to(image, (COUNT, 9, 9, 3)))
    seen = []
    for view, (blur, solarize) in zip(made, ((1.0, 0.0), (0.1, 0.2)), strict=True):
        pixels = (view[:, 0] * 255).round().cpu()
        is_inverted = pixels[:, 0, 0] < 128
        pixels = torch.where(is_inverted[:, None, None], 255 - pixels, pixels)
        is_blurred = (pixels != 240).flatten(1).sum(dim=1) > 1
        is_flipped = (pixels - 240).abs()[:, :, 5:].sum(dim=(1, 2)) > (pixels - 240).abs()[:, :, :4].sum(dim=(1, 2))
        seen.append((is_blurred, is_inverted, is_flipped))
        for found, p in zip(seen[-1], (blur, solarize, 0.5), strict=True):
            count = int(found.sum())
            assert count == p * COUNT if p in (0, 1) else stats.binomtest(count, COUNT, p).pvalue > 1e-3
    both = int((seen[0][2] & seen[1][2]).sum())
    assert stats.binomtest(both, COUNT, 0.25).pvalue > 1e-3, "the views flip independently"


# Windows, a warp, noise within DALI and a choice among steps.
SHARED: dict[str, Any] = {
    "random_resized_crop": {"area_range": [0.1, 0.5]},
    "flip": {"p": 0.5},
    "rotate": {"p": 0.8},
    "gaussian_noise": {"p": 0.7},
    "invert": {"p": 0},
    "some": {"op": "some_of", "p": 0.7, "steps": {"rot90": {}, "salt_and_pepper": {}}},
}


def test_shared_steps_are_the_same_to_the_bit(varied: Split, device: torch.device) -> None:
    names = [name for name in SHARED if name != "invert"]
    views = {
        "first": None,
        "equal": {"count": 2, "share": names},
        "inverted": {"share": names[:-1], "steps": {"some": {"p": 0}, "invert": {"p": 1}}},
        "window": {"share": names[:1]},
    }
    plan = plan_of(SHARED, views | {"plain": {"share": names[:-1], "steps": {"some": {"p": 0}}}})
    first, equal, again, inverted, window, plain = views_of(make(varied, device, plan=plan))
    assert torch.equal(equal, first)
    assert torch.equal(again, first)
    assert torch.equal(inverted, 255 - plain)
    for other in (window, plain):
        assert (other != first).flatten(1).any(dim=1).sum() >= len(first) // 2
    # What is the same runs once: the crop and one stage or several.
    assert [own.shared_results(plan) for own in plan.others] == [5, 5, 3, 1, 3]


def test_transform_shares_what_a_loader_shares(device: torch.device, varied: Split) -> None:
    names = ["random_resized_crop", "flip", "rotate", "gaussian_noise"]
    train = {name: SHARED[name] for name in names}
    views = {"first": None, "all": {"share": names}, "small": {"size": [8, 12], "share": names[:2]}}
    recipe = load_recipe({"size": 16, "train": train, "views": views})
    images = np.random.default_rng(0).integers(0, 256, (5, 40, 30, 3), np.uint8)
    first, equal, small = Transform(recipe, device=device, seed=2)(images)
    assert torch.equal(first, equal)
    assert small.shape == (5, 3, 8, 12)
    assert (first[:, :, ::2, :12] != small).flatten(1).any(dim=1).all()


def test_many_windows_are_cut_from_images_decoded_once(image_files: Split) -> None:
    # Small and large views, of files; the windows are those of images decoded apart.
    views = {"first": None, "others": {"count": 3, "size": 12}}
    plan = plan_of({"random_resized_crop": {}}, views)
    apart = plan_of({"random_resized_crop": {}}, {"count": 4})
    cpu = torch.device("cpu")
    made, expected = (views_of(make(image_files, cpu, plan=p)) for p in (plan, apart))
    assert [view.shape[-1] for view in made] == [16, 12, 12, 12]
    assert (made[0].float() - expected[0].float()).abs().mean() < 1


def test_resume_with_named_views(varied: Split, device: torch.device) -> None:
    views = {"first": None, "second": {"size": 8, "share": ["flip"], "steps": {"gaussian_noise": None}}}
    plan = plan_of(RECIPE, views)
    loader = make(varied, device, plan=plan)
    whole = views_of(make(varied, device, plan=plan))
    take(loader, 1)
    resumed = make(varied, device, plan=plan)
    resumed.load_state_dict(saved(loader.state_dict()))
    rest = [[view.cpu().clone() for view in batch.views] for batch in resumed]
    for number, view in enumerate(whole):
        assert torch.equal(torch.cat([views[number] for views in rest]), view[4:])
    changed = plan_of(RECIPE, views | {"second": {"size": 8}})
    with pytest.raises(UserError, match=r"^aug\.train differs from the saved run"):
        make(varied, device, plan=changed).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ({"a": {}, "count": 2}, "aug.views.count cannot be combined with named views. Remove it"),
        ({"a": 3, "b": {}}, "aug.views.a: 3 is not allowed. Use a mapping of count, size, share, steps."),
        ({"a": {"stps": {}}}, "aug.views.a.stps: unknown key. Did you mean 'steps'? Allowed: count, share, size, "),
        ({"a": {"steps": {"rotat": {}}}}, "aug.views.a.steps.rotat: unknown op 'rotat'. Did you mean 'rotate'?"),
        ({"a": {"steps": 1}}, "aug.views.a.steps: 1 is not allowed."),
        ({"a": {"steps": {"flip": {"p": 2}}}}, "aug.views.a.steps.flip.p: 2 is not allowed."),
        ({"a": {}, "b": {"share": ["flp"]}}, "aug.views.b.share: unknown step 'flp'. Did you mean 'flip'?"),
        ({"a": {}, "b": {"share": ["flip"], "steps": {"flip": {"p": 0.1}}}}, "aug.views.b.share: 'flip' has different"),
        ({"a": {"steps": {"mixup": {}}}}, "aug.views.a.steps.mixup mixes samples. Move it to aug.train."),
        (2, "aug.views: 2 is not allowed. Use a mapping, such as aug.views.count=2. Allowed keys: count, crop."),
        ({"cuont": 2}, "aug.views.cuont: unknown key. Did you mean 'count'?"),
    ],
)  # fmt: skip
def test_mistakes_in_views(views: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        plan_of({"flip": {"p": 0.5}}, views)


def test_steps_of_a_view_change_and_continue_those_of_all() -> None:
    train = {"random_resized_crop": {}, "flip": {"p": 0.5}, "mixup": {}}
    own = {"flip": {"direction": "vertical"}, "center_crop": {}, "hue": None}
    (view,) = parse_aug({"train": train, "views": {"a": {"steps": own}}}).views.named
    assert [step.key for step in view.steps] == ["center_crop", "flip", "hue", "mixup"]
    assert (view.steps[1].p, view.steps[1].params["direction"]) == (0.5, "vertical")
