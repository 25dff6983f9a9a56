"""Several views of each sample."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes import needs_gpu
from passes import DRAWN, RECIPE, SEED, SIZE, first, level, make, views_of

from augment.data.dataset import Split
from augment.recipe.plan import Plan, build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug


def plan_of_views(count: int, crop: str, steps: dict[str, Any], size: int = 16) -> Plan:
    return build_plan(parse_aug({"size": size, "train": steps, "views": {"count": count, "crop": crop}}), "train")


@pytest.mark.parametrize("crop", ["own", "same"])
def test_first_view_is_what_one_view_would_be(crop: str, varied: Split, device: torch.device) -> None:
    steps = RECIPE | {"gaussian_noise": {"p": 0.5}}
    one, several = (make(varied, device, plan=plan_of_views(n, crop, steps)) for n in (1, 3))
    for _ in range(2):
        (alone,), (first_view, *others) = views_of(one), views_of(several)
        assert torch.equal(first_view, alone)
        assert len(others) == 2
        for i, view in enumerate(others):
            assert (view != first_view).flatten(1).any(dim=1).all()
            for other in others[:i]:
                assert (view != other).flatten(1).any(dim=1).all()


@needs_gpu
def test_first_view_of_files_on_the_gpu(image_files: Split) -> None:
    test_first_view_is_what_one_view_would_be("own", image_files, torch.device("cuda"))


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


# --- samples that are mixed ---
