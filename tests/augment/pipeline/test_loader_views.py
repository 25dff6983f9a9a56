"""Several views of each sample, and samples that are mixed."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu
from passes import DRAWN, RECIPE, SEED, SIZE, first, level, make, plan_of, saved, take, views_of

from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug

# --- several views ---


def plan_of_views(count: int, crop: str, steps: dict[str, Any], size: int = 16) -> Plan:
    return build_plan(parse_aug({"size": size, "train": steps, "views": {"count": count, "crop": crop}}), "train")


@pytest.mark.parametrize("crop", ["own", "same"])
@pytest.mark.parametrize("count", [2, 3])
def test_first_view_is_what_one_view_would_be(count: int, crop: str, varied: Split, device: torch.device) -> None:
    steps = RECIPE | {"gaussian_noise": {"p": 0.5}}
    one, several = (make(varied, device, plan=plan_of_views(n, crop, steps)) for n in (1, count))
    for _ in range(2):
        (alone,), (first_view, *others) = views_of(one), views_of(several)
        assert torch.equal(first_view, alone)
        assert len(others) == count - 1
        for i, view in enumerate(others):
            assert (view != first_view).flatten(1).any(dim=1).all()
            for other in others[:i]:
                assert (view != other).flatten(1).any(dim=1).all()


@needs_gpu
def test_first_view_of_files_on_the_gpu(image_files: Split) -> None:
    test_first_view_is_what_one_view_would_be(2, "own", image_files, torch.device("cuda"))


@pytest.mark.parametrize("crop", ["own", "same"])
def test_windows_of_views(crop: str, varied: Split, device: torch.device) -> None:
    window = {"random_resized_crop": {"area_range": [0.1, 0.3]}}
    one, other = views_of(make(varied, device, plan=plan_of_views(2, crop, window)))
    is_same = (one == other).flatten(1).all(dim=1)
    assert is_same.all() if crop == "same" else not is_same.any()


def test_views_draw_their_own_parameters(grays: Split, device: torch.device) -> None:
    # Plain images, whose window shows nothing: each view has a factor of its own.
    plan = plan_of_views(2, "same", DRAWN, SIZE)
    loader = make(first(grays, 13), device, plan=plan)
    for epoch in range(2):
        batches = [(batch.indices.tolist(), [view.cpu()[:, 1, 4, 4] for view in batch.views]) for batch in loader]
        levels = np.array([level(index) for order, _ in batches for index in order])
        factors = []
        for view in range(2):
            drawn = Sampler(plan, SEED, view=view).draw(epoch, 0, 13)["brightness"]
            factors.append(np.where(drawn["applied"], drawn["factor"], 1))
            found = torch.cat([views[view] for _, views in batches])
            np.testing.assert_allclose(found, levels * factors[-1], atol=0.51)
        assert np.abs(np.corrcoef(factors[0], factors[1])[0, 1]) < 0.9


def make_at(loader: Loader, data: Split, device: torch.device, plan: Plan, epoch: int) -> Loader:
    """Return another loader that stands where a loader stands, at the beginning of an epoch."""
    assert loader.epoch == epoch
    other = make(data, device, plan=plan)
    other.load_state_dict(saved(loader.state_dict()))
    return other


@pytest.mark.parametrize("crop", ["own", "same"])
def test_resume_with_views(crop: str, varied: Split, device: torch.device) -> None:
    data, plan = first(varied, 13), plan_of_views(2, crop, RECIPE)
    loader = make(data, device, plan=plan)
    views_of(loader)
    epoch = views_of(make_at(loader, data, device, plan, epoch=1))
    take(loader, 2)
    resumed = make(data, device, plan=plan)
    resumed.load_state_dict(saved(loader.state_dict()))
    assert all(torch.equal(view, whole[8:]) for view, whole in zip(views_of(resumed), epoch, strict=True))


# --- samples that are mixed ---

MIXED: dict[str, Any] = {"flip": {"p": 0.5}, "one_of": {"p": 0.75, "steps": {"mixup": {}, "cutmix": {}}}}


def test_targets_of_mixed_samples_are_shares(varied: Split, device: torch.device) -> None:
    loader = make(first(varied, 13), device, plan=plan_of(MIXED, size=16), raw=False, classes="abc")
    plain = make(first(varied, 13), device, plan=plan_of({"flip": {"p": 0.5}}, size=16), raw=False)
    for _ in range(2):
        for batch, unmixed in zip(loader, plain, strict=True):
            assert batch.targets.shape == (len(batch), 3)
            assert batch.targets.dtype == torch.float32
            torch.testing.assert_close(batch.targets.sum(dim=1), torch.ones(len(batch), device=device))
            assert torch.equal(batch.indices, unmixed.indices)
            own = batch.targets.gather(1, unmixed.targets[:, None])[:, 0]
            is_plain = (batch.images == unmixed.images).flatten(1).all(dim=1)
            assert (own[is_plain] == 1).all()
