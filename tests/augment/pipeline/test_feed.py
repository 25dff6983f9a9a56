"""The values that DALI is fed: of which batch, and what is left out."""

from pathlib import Path

import numpy as np
import pytest
from pipelines import SEED, SIZE, plan_of

from augment.params import Size
from augment.pipeline.graph.parameter_feed import Feed
from augment.pipeline.graph.sample_order import Reading
from augment.recipe.sampler import Sampler


def feed_of(sampler: Sampler, *, epoch: int = 2, batch_size: int = 4, batches: int = 3) -> Feed:
    return Feed(sampler, Reading([Path()] * batch_size * batches, batch_size, SEED, epoch), neutral=True)


def test_feed_takes_an_epoch_after_the_other() -> None:
    sampler = Sampler(plan_of({"contrast": {"p": 0.5}, "rotate": {}}, "train"), SEED)
    feed = feed_of(sampler)
    for iteration in [*range(7), 1, 6, 0]:  # in order, and jumping
        epoch, batch = divmod(iteration, 3)
        drawn = sampler.draw(2 + epoch, 4 * batch, 4)
        color, geometry = feed.values(iteration)
        assert (color.shape, geometry.shape) == ((4, 3, 4), (4, 3, 3))
        assert color.dtype == geometry.dtype == np.float32
        np.testing.assert_array_equal(color, sampler.plan.stages[0].matrix(drawn, Size(SIZE, SIZE)).astype(np.float32))
        # What is right of the middle goes up, and stays as far from it.
        angle = np.radians(drawn["rotate"]["angle"])
        np.testing.assert_allclose(geometry[:, 0, 1], -np.sin(angle), atol=1e-6)


@pytest.mark.parametrize(("batch_size", "batches"), [(1000, 10), (5000, 2), (1, 4100)])
def test_feed_draws_many_batches_at_once_and_gives_them_one_by_one(batch_size: int, batches: int) -> None:
    sampler = Sampler(plan_of({"brightness": {}}, "train"), SEED)
    feed = feed_of(sampler, batch_size=batch_size, batches=batches, epoch=0)
    whole = sampler.draw(0, 0, batch_size * batches)["brightness"]["factor"]
    for iteration in {0, 1, 3, 4, 5, 9, 4095, 4096, 4099} & set(range(batches)):
        factors = feed.values(iteration)[0][:, 1, 1]
        np.testing.assert_allclose(factors, whole[iteration * batch_size : (iteration + 1) * batch_size], rtol=1e-6)
    later = sampler.draw(1, 0, batch_size)["brightness"]["factor"]
    np.testing.assert_allclose(feed.values(batches)[0][:, 1, 1], later, rtol=1e-6)


def test_inverted_matrices_match_numpy() -> None:
    sampler = Sampler(plan_of({"affine": {"p": 0.5}, "perspective": {"p": 0.5}}, "train"), SEED)
    matrix = sampler.plan.stages[0].matrix(sampler.draw(2, 0, 100), Size(SIZE, SIZE))
    (fed,) = feed_of(sampler, batch_size=100).values(0)
    middle = np.array([[1, 0, (SIZE - 1) / 2], [0, 1, (SIZE - 1) / 2], [0, 0, 1]])
    np.testing.assert_allclose(fed, middle @ np.linalg.inv(matrix) @ np.linalg.inv(middle), rtol=1e-5, atol=1e-5)
    same = (matrix == np.eye(3)).all(axis=(1, 2))
    assert 10 < same.sum() < 50
    assert (fed[same] == np.eye(3)).all()
