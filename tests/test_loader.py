"""Exact epochs from real DALI: each sample once, whatever was cut, saved, resumed or sharded before."""

import io
import itertools
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import augment.loader
from augment.config import SplitName, parse_aug
from augment.dataset import Split
from augment.errors import UserError
from augment.loader import Batch, Loader
from augment.pipeline import Shard
from augment.plan import Plan, build_plan
from augment.sampler import Sampler

SEED = 3
SIZE = 8
FILES = 17

# What a batch holds, on the CPU, in memory of its own: images, targets, indices.
Content = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def grays(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Plain gray PNGs: the level of a picture tells its index, and its target is neither."""
    folder = tmp_path_factory.mktemp("grays")
    files = tuple(folder / f"{index}.png" for index in range(FILES))
    for index, file in enumerate(files):
        Image.new("RGB", (SIZE, SIZE), (level(index),) * 3).save(file)
    return Split(files, tuple(7 * index % 5 for index in range(FILES)))


def level(index: int) -> int:
    return 60 + 10 * index


def first(split: Split, count: int) -> Split:
    """Return the first `count` pictures, beginning again where there are no more."""
    places = [i % len(split) for i in range(count)]
    return Split(tuple(split.files[i] for i in places), tuple(split.targets[i] for i in places))


# A factor of its own for each sample tells the epoch and the place that it was drawn for.
DRAWN: dict[str, Any] = {"brightness": {"p": 0.75, "factor_range": [0.25, 1]}}

# Everything that has state: the shuffle, the crop's generator and two stages.
RECIPE: dict[str, Any] = {"random_resized_crop": {}, "flip": {"p": 0.5}, "rotate": {"p": 0.5}, "hue": {"p": 0.5}}


def plan_of(steps: dict[str, Any], split: SplitName = "train", size: int = SIZE) -> Plan:
    return build_plan(parse_aug({"size": size, split: steps}), split)


def make(
    split: Split, device: torch.device, *, plan: Plan | None = None, batch_size: int = 4, **options: Any
) -> Loader:
    given: dict[str, Any] = {"seed": SEED, "device": device, "raw": True} | options
    return Loader(plan or plan_of(DRAWN), split, batch_size=batch_size, **given)


def content(batch: Batch) -> Content:
    return batch.images.cpu().clone(), batch.targets.cpu().clone(), batch.indices.cpu().clone()


def take(loader: Iterable[Batch], count: int | None = None) -> list[Content]:
    """Return a pass, or the first `count` batches of one that is then cut short."""
    taken = []
    for batch in loader:
        taken.append(content(batch))
        if len(taken) == count:
            break
    return taken


def indices(batches: list[Content]) -> list[int]:
    return torch.cat([batch[2] for batch in batches]).tolist() if batches else []


def same(ones: list[Content], others: list[Content]) -> bool:
    return len(ones) == len(others) and all(
        torch.equal(a, b) for one, other in zip(ones, others, strict=True) for a, b in zip(one, other, strict=True)
    )


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Write a state to a file and read it again, without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file, weights_only=True)
    return read


def assert_drawn(batches: list[Content], epoch: int, *, split: SplitName = "train") -> None:
    """Check that gray pictures were fed with the draws of an epoch, from its first place on."""
    order = indices(batches)
    drawn = Sampler(plan_of(DRAWN, split), SEED).draw(epoch, 0, len(order))["brightness"]
    factors = np.where(drawn["applied"], drawn["factor"], 1)
    levels = torch.cat([batch[0] for batch in batches])[:, 1, SIZE // 2, SIZE // 2].numpy()
    np.testing.assert_allclose(levels, factors * [level(index) for index in order], atol=0.51)


def assert_complete(batches: list[Content], samples: int, epoch: int, *, split: SplitName = "train") -> None:
    """Check that a pass has each of so many gray pictures once, with the draws of that epoch."""
    assert sorted(indices(batches)) == list(range(samples))
    assert_drawn(batches, epoch, split=split)


# --- exact epochs ---

COUNTS = sorted({(b, n) for b in (1, 2, 7, 8) for n in (1, b - 1, b, b + 1, 2 * b + 1) if n > 0})


@pytest.mark.parametrize(("batch_size", "samples"), COUNTS)
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_sample_once_an_epoch_over_all_ranks(
    batch_size: int, samples: int, split: SplitName, world_size: int, grays: Split, device: torch.device
) -> None:
    data, plan = first(grays, samples), plan_of({}, split)
    if samples < world_size:
        with pytest.raises(UserError, match=f"^data: {samples} pictures in {split} for {world_size} ranks"):
            make(data, device, plan=plan, batch_size=batch_size, shard=Shard(0, world_size))
        return
    loaders = [
        make(data, device, plan=plan, batch_size=batch_size, shard=Shard(rank, world_size))
        for rank in range(world_size)
    ]
    assert sum(loader.samples for loader in loaders) == samples
    for _ in range(3):
        seen = []
        for loader in loaders:
            batches = take(loader)
            sizes = [len(batch[1]) for batch in batches]
            assert len(batches) == len(loader)
            assert sum(sizes) == loader.samples
            assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
            assert 1 <= sizes[-1] <= batch_size
            for images, targets, index in batches:
                assert targets.tolist() == [data.targets[i] for i in index.tolist()]
                levels = torch.tensor([level(i) for i in index.tolist()])
                assert torch.equal(images[:, 0, 0, 0].long(), levels)
            seen += indices(batches)
        assert sorted(seen) == list(range(samples))


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"),
    [(1, 4, [1]), (3, 4, [3]), (4, 4, [4]), (5, 4, [4]), (8, 4, [4, 4]), (11, 4, [4, 4]), (3, 1, [1, 1, 1])],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_drop_last_drops_the_smaller_batch_but_never_the_only_one(
    samples: int, batch_size: int, sizes: list[int], split: SplitName, grays: Split, device: torch.device
) -> None:
    loader = make(first(grays, samples), device, plan=plan_of({}, split), batch_size=batch_size, drop_last=True)
    assert len(loader) == len(sizes)
    for _ in range(3):
        batches = take(loader)
        assert [len(batch[1]) for batch in batches] == sizes
        assert len(set(indices(batches))) == sum(sizes)


def test_drop_last_on_ranks_of_uneven_shards(grays: Split, device: torch.device) -> None:
    # 9 samples: 4 and 5.
    loaders = [make(first(grays, 9), device, shard=Shard(rank, 2), drop_last=True) for rank in (0, 1)]
    for _ in range(3):
        assert [len(take(loader)) for loader in loaders] == [1, 1] == [len(loader) for loader in loaders]


def test_draws_of_each_epoch(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    for epoch in range(3):
        assert_complete(take(loader), 13, epoch)


def test_shuffles(grays: Split, device: torch.device) -> None:
    loader, twin, other = (make(grays, device, seed=seed) for seed in (0, 0, 1))
    epochs, twins, others = ([take(each) for _ in range(3)] for each in (loader, twin, other))
    orders = [indices(epoch) for epoch in epochs + others]
    assert len({tuple(order) for order in orders}) == 6
    assert list(range(FILES)) not in orders
    assert all(same(epoch, again) for epoch, again in zip(epochs, twins, strict=True))


def test_validation_keeps_its_order_and_its_draws(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device, plan=plan_of(DRAWN, "val"))
    for _ in range(3):
        batches = take(loader)
        assert indices(batches) == list(range(13))
        assert_complete(batches, 13, epoch=0, split="val")


def test_validation_stays_in_epoch_zero_after_a_cut_pass(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device, plan=plan_of(DRAWN, "val"))
    for cut in (1, 3):
        take(loader, cut)
        batches = take(loader)
        assert indices(batches) == list(range(13))
        assert_complete(batches, 13, epoch=0, split="val")
    loader.close()
    assert_complete(take(loader), 13, epoch=0, split="val")


def test_validation_with_a_random_crop_takes_the_same_windows(pictures: Split, device: torch.device) -> None:
    loader = make(pictures, device, plan=plan_of({"random_resized_crop": {"area_range": [0.1, 0.5]}}, "val", 16))
    passes = [take(loader) for _ in range(2)]
    take(loader, 1)
    passes.append(take(loader))
    assert same(passes[0], passes[1])
    assert same(passes[0], passes[2])


@pytest.mark.parametrize(
    "steps",
    [
        {"gaussian_noise": {"p": 0.5}},
        {"flip": {}, "one_of": {"steps": {"salt_and_pepper": {}, "shot_noise": {}}}},
        {"erase": {"fill": "noise"}, "clahe": {}},
    ],
    ids=["a step", "within a policy", "and what cannot be saved"],
)
def test_validation_with_noise_has_the_same_noise(steps: dict[str, Any], pictures: Split, device: torch.device) -> None:
    plan = plan_of(steps, "val", 16)
    assert plan.draws_in_dali
    loader = make(pictures, device, plan=plan)
    passes = [take(loader) for _ in range(2)]
    take(loader, 1)
    passes.append(take(loader))
    assert same(passes[0], passes[1])
    assert same(passes[0], passes[2])
    plain = take(make(pictures, device, plan=plan_of({}, "val", 16)))
    assert not same(passes[0], plain)
    # In training it is new noise each time.
    training = make(pictures, device, plan=plan_of(steps, "train", 16))
    by_index = [dict(pairs(take(training))) for _ in range(2)]
    assert any(not torch.equal(by_index[0][index], by_index[1][index]) for index in range(len(pictures)))


def pairs(batches: list[Content]) -> Iterator[tuple[int, Tensor]]:
    for images, _, order in batches:
        yield from zip(order.tolist(), images, strict=True)


def test_what_draws_in_dali() -> None:
    for steps, draws in (
        ({"flip": {"p": 0.5}, "gaussian_blur": {}, "erase": {"p": 0}}, False),
        ({"random_resized_crop": {}}, True),
        ({"random_crop": {}}, True),
        ({"center_crop": {}, "gaussian_noise": {"p": 0.1}}, True),
        ({"one_of": {"steps": {"flip": {}, "gaussian_noise": {}}}}, True),
        ({"one_of": {"p": 0, "steps": {"flip": {}, "gaussian_noise": {}}}}, False),
    ):
        assert plan_of(steps).draws_in_dali == draws, steps


# --- what a batch is ---


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({"raw": False}, torch.float32), ({"raw": False, "half": True}, torch.float16), ({}, torch.uint8)],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_batch(
    options: dict[str, bool], dtype: torch.dtype, batch_size: int, pictures: Split, device: torch.device
) -> None:
    loader = make(pictures, device, plan=plan_of(RECIPE, size=16), batch_size=batch_size, **options)
    for batch in loader:
        assert len(batch) == len(batch.targets) == len(batch.indices) == len(batch.images)
        assert batch.images.shape[1:] == (3, 16, 16)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.images.dtype == dtype
        assert batch.targets.dtype == batch.indices.dtype == torch.int64
        assert {t.device.type for t in (batch.images, batch.targets, batch.indices)} == {device.type}
        assert batch.targets.tolist() == [pictures.targets[i] for i in batch.indices.tolist()]


def test_images_are_normalized_unless_raw(pictures: Split, device: torch.device) -> None:
    raw, full = (take(make(pictures, device, plan=plan_of({}, "val"), raw=raw)) for raw in (True, False))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for one, other in zip(raw, full, strict=True):
        torch.testing.assert_close(other[0], (one[0] / 255 - mean) / std, atol=1e-5, rtol=1e-5)


def test_batches_that_are_kept_stay_as_they_were(pictures: Split, device: torch.device) -> None:
    loader = make(first(pictures, 13), device, plan=plan_of(RECIPE, size=16))
    kept, copies = [], []
    for batch in itertools.chain(loader, loader, loader):
        kept.append(batch)
        copies.append(content(batch))
    loader.close()
    take(make(first(pictures, 13), device, plan=plan_of(RECIPE, size=16), seed=9))
    assert len(kept) == 12
    assert same([content(batch) for batch in kept], copies)


# --- several views ---


def plan_of_views(count: int, crop: str, steps: dict[str, Any], size: int = 16) -> Plan:
    return build_plan(parse_aug({"size": size, "train": steps, "views": {"count": count, "crop": crop}}), "train")


def views_of(loader: Loader) -> list[Tensor]:
    """Return the pictures of each view of a pass, (samples, 3, size, size)."""
    batches = [[view.cpu().clone() for view in batch.views] for batch in loader]
    return [torch.cat(view) for view in zip(*batches, strict=True)]


@pytest.mark.parametrize("crop", ["own", "same"])
@pytest.mark.parametrize("count", [2, 3])
def test_first_view_is_what_one_view_would_be(count: int, crop: str, pictures: Split, device: torch.device) -> None:
    steps = RECIPE | {"gaussian_noise": {"p": 0.5}}
    one, several = (make(pictures, device, plan=plan_of_views(n, crop, steps)) for n in (1, count))
    for _ in range(2):
        (alone,), (first_view, *others) = views_of(one), views_of(several)
        assert torch.equal(first_view, alone)
        assert len(others) == count - 1
        for i, view in enumerate(others):
            assert (view != first_view).flatten(1).any(dim=1).all()
            for other in others[:i]:
                assert (view != other).flatten(1).any(dim=1).all()


def test_images_are_the_first_view(pictures: Split, device: torch.device) -> None:
    for count in (1, 2):
        for batch in make(pictures, device, plan=plan_of_views(count, "own", RECIPE), raw=False):
            assert len(batch.views) == count
            assert batch.images is batch.views[0]
            for view in batch.views:
                assert view.shape == (len(batch), 3, 16, 16)
                assert view.is_contiguous(memory_format=torch.channels_last)
                assert view.dtype == torch.float32


@pytest.mark.parametrize("crop", ["own", "same"])
def test_windows_of_views(crop: str, pictures: Split, device: torch.device) -> None:
    window = {"random_resized_crop": {"area_range": [0.1, 0.3]}}
    one, other = views_of(make(pictures, device, plan=plan_of_views(2, crop, window)))
    is_same = (one == other).flatten(1).all(dim=1)
    assert is_same.all() if crop == "same" else not is_same.any()


def test_views_draw_their_own_parameters(grays: Split, device: torch.device) -> None:
    # Plain pictures, whose window shows nothing: each view has a factor of its own.
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


def test_validation_has_one_view(pictures: Split, device: torch.device) -> None:
    plan = build_plan(parse_aug({"size": 16, "val": RECIPE, "views": {"count": 2}}), "val")
    assert all(len(batch.views) == 1 for batch in make(pictures, device, plan=plan))


@pytest.mark.parametrize("crop", ["own", "same"])
def test_resume_with_views(crop: str, pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 13), plan_of_views(2, crop, RECIPE)
    loader = make(data, device, plan=plan)
    views_of(loader)
    epoch = views_of(make_at(loader, data, device, plan, epoch=1))
    take(loader, 2)
    resumed = make(data, device, plan=plan)
    resumed.load_state_dict(saved(loader.state_dict()))
    assert all(torch.equal(view, whole[8:]) for view, whole in zip(views_of(resumed), epoch, strict=True))


def make_at(loader: Loader, data: Split, device: torch.device, plan: Plan, epoch: int) -> Loader:
    """Return another loader that stands where a loader stands, at the beginning of an epoch."""
    assert loader.epoch == epoch
    other = make(data, device, plan=plan)
    other.load_state_dict(saved(loader.state_dict()))
    return other


def test_views_of_another_number_do_not_resume(pictures: Split, device: torch.device) -> None:
    loader = make(pictures, device, plan=plan_of_views(2, "own", RECIPE))
    take(loader, 1)
    for other in (plan_of_views(1, "own", RECIPE), plan_of_views(2, "same", RECIPE)):
        with pytest.raises(UserError, match=r"^aug\.train: not that of the saved run"):
            make(pictures, device, plan=other).load_state_dict(loader.state_dict())


# --- samples that are mixed ---

MIXED: dict[str, Any] = {"flip": {"p": 0.5}, "one_of": {"p": 0.75, "steps": {"mixup": {}, "cutmix": {}}}}


def test_targets_of_mixed_samples_are_shares(pictures: Split, device: torch.device) -> None:
    loader = make(first(pictures, 13), device, plan=plan_of(MIXED, size=16), raw=False, classes=3)
    plain = make(first(pictures, 13), device, plan=plan_of({"flip": {"p": 0.5}}, size=16), raw=False)
    for _ in range(2):
        for batch, unmixed in zip(loader, plain, strict=True):
            assert batch.targets.shape == (len(batch), 3)
            assert batch.targets.dtype == torch.float32
            torch.testing.assert_close(batch.targets.sum(dim=1), torch.ones(len(batch), device=device))
            assert torch.equal(batch.indices, unmixed.indices)
            own = batch.targets.gather(1, unmixed.targets[:, None])[:, 0]
            is_plain = (batch.images == unmixed.images).flatten(1).all(dim=1)
            assert (own[is_plain] == 1).all()


def test_mixed_samples_are_not_mixed_when_they_are_looked_at(pictures: Split, device: torch.device) -> None:
    mixed, plain = (make(pictures, device, plan=plan_of(steps)) for steps in (MIXED, {"flip": {"p": 0.5}}))
    assert same(take(mixed), take(plain))


@pytest.mark.parametrize("epoch", [0, 1])
def test_resume_with_mixed_samples(epoch: int, pictures: Split, device: torch.device) -> None:
    def loader() -> Loader:
        return make(first(pictures, 13), device, plan=plan_of(MIXED, size=16), raw=False, classes=3)

    one = loader()
    for _ in range(epoch):
        take(one)
    batches, states = states_of(one)
    resumed = loader()
    resumed.load_state_dict(states[1])
    assert same(take(resumed), batches[2:])
    assert same(take(resumed), take(one))


# --- passes that are cut short ---


def fail_in_the_loop(loader: Loader, after: int) -> None:
    for number, _ in enumerate(loader, 1):
        if number == after:
            raise RuntimeError("in the loop")


def cut(loader: Loader, after: int, how: str) -> Iterator[Batch] | None:
    """Take some batches and leave: by break, by an exception, or by letting go of the iterator."""
    if how == "break":
        take(loader, after)
    elif how == "exception":
        with pytest.raises(RuntimeError, match="in the loop"):
            fail_in_the_loop(loader, after)
    else:
        batches = iter(loader)
        for _ in range(after):
            next(batches)
        return batches  # still alive while the next pass begins
    return None


@pytest.mark.parametrize("how", ["break", "exception", "next"])
def test_after_a_cut_pass_comes_the_next_epoch(how: str, grays: Split, device: torch.device) -> None:
    data = first(grays, 13)
    following = []
    for after in range(1, 5):
        loader = make(data, device)
        alive = cut(loader, after, how)
        assert loader.epoch == (1 if after == 4 else 0)
        batches = take(loader)
        assert_complete(batches, 13, epoch=1)
        assert loader.epoch == 2
        assert_complete(take(loader), 13, epoch=2)
        following.append(batches)
        del alive
    # Where the pass was cut makes no difference.
    assert same(following[0], following[1])
    assert same(following[0], following[2])


def test_cut_again_and_again(grays: Split, device: torch.device) -> None:
    data = first(grays, 13)
    loader = make(data, device)
    for epoch, after in enumerate((2, 1, 4, 3)):
        begun = take(loader, after)
        assert len(set(indices(begun))) == min(13, 4 * after)
        assert_drawn(begun, epoch)
    assert_complete(take(loader), 13, epoch=4)


def test_a_pass_that_never_began_counts_for_nothing(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    iter(loader)
    assert_complete(take(loader), 13, epoch=0)


def test_ranks_that_stop_after_their_last_batch_stay_together(grays: Split, device: torch.device) -> None:
    # 9 samples: one batch on rank 0 and two on rank 1. A loop that counts batches never asks for one more.
    loaders = [make(first(grays, 9), device, shard=Shard(rank, 2)) for rank in (0, 1)]
    assert [len(loader) for loader in loaders] == [1, 2]
    for _ in range(3):
        seen = [index for loader in loaders for index in indices(take(loader, len(loader)))]
        assert sorted(seen) == list(range(9))


def test_ranks_that_are_cut_after_the_same_batch_stay_together(grays: Split, device: torch.device) -> None:
    # The only batch of rank 0, the first of two on rank 1.
    loaders = [make(first(grays, 9), device, shard=Shard(rank, 2)) for rank in (0, 1)]
    for loader in loaders:
        take(loader, 1)
    for _ in range(2):
        assert sorted(index for loader in loaders for index in indices(take(loader))) == list(range(9))


@pytest.mark.parametrize("after", [None, 4, 2])
def test_close_and_go_on(after: int | None, grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    take(loader, after)
    loader.close()
    loader.close()
    assert loader.epoch == 1
    assert_complete(take(loader), 13, epoch=1)


# --- passes that are prepared, and passes of any epoch ---

NOISE: dict[str, Any] = {"random_resized_crop": {}, "gaussian_noise": {"p": 0.5}}


@pytest.mark.parametrize("before", [None, 0, 2, 4])
def test_start_at_an_epoch(before: int | None, grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    if before is not None:
        loader.prepare()
        if before:
            take(loader, before)
    for epoch in (3, 1):
        loader.start_at(epoch)
        assert (loader.epoch, loader.next_epoch, loader.batch) == (epoch, epoch, 0)
        assert_complete(take(loader), 13, epoch)
        assert_complete(take(loader), 13, epoch + 1)


def test_the_epoch_of_the_next_pass(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    assert (loader.epoch, loader.next_epoch) == (0, 0)
    take(loader, 2)
    assert (loader.epoch, loader.batch, loader.next_epoch) == (0, 2, 1)
    loader.load_state_dict(saved(loader.state_dict()))
    assert loader.next_epoch == 0
    take(loader)
    assert (loader.epoch, loader.batch, loader.next_epoch) == (1, 0, 1)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("steps", [RECIPE, NOISE], ids=["recipe", "noise"])
def test_what_is_prepared_is_the_same(
    steps: dict[str, Any], split: SplitName, pictures: Split, device: torch.device
) -> None:
    data, plan = first(pictures, 13), plan_of(steps, split, 16)
    plain, prepared = make(data, device, plan=plan), make(data, device, plan=plan)
    prepared.prepare()
    for _ in range(3):
        expected, found = take(plain), []
        for batch in prepared:
            prepared.prepare()  # in the middle of a pass it does nothing
            found.append(content(batch))
        prepared.prepare()
        assert same(found, expected)
    take(plain, 2)
    take(prepared, 2)
    prepared.prepare()
    assert same(take(prepared), take(plain))


@pytest.mark.parametrize(("split", "built"), [("train", 1), ("val", 2)])
def test_validation_that_draws_prepares_each_pass(
    split: SplitName, built: int, pictures: Split, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    build = augment.loader.build_pipeline

    def spy(*given: Any, **options: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return build(*given, **options)

    monkeypatch.setattr(augment.loader, "build_pipeline", spy)
    loader = make(pictures, device, plan=plan_of({"random_resized_crop": {}}, split, 16))
    for _ in range(2):
        loader.prepare()
        take(loader)
    assert threads == [False] * built


def test_what_fails_while_it_is_prepared_is_raised_by_the_pass(
    pictures: Split, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **options: Any) -> None:
        raise OSError("no such picture")

    loader = make(pictures, device)
    with monkeypatch.context() as patched:
        patched.setattr(augment.loader, "build_pipeline", broken)
        loader.prepare()
        with pytest.raises(OSError, match="no such picture"):
            take(loader)
    assert sorted(indices(take(loader))) == list(range(len(pictures)))


def test_states_of_prepared_loaders(pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 13), plan_of(RECIPE, size=16)
    loader = make(data, device, plan=plan)
    epochs = [take(loader) for _ in range(2)]
    loader.start_at(1)
    loader.prepare()
    other = make(data, device, plan=plan)
    other.prepare()
    other.load_state_dict(saved(loader.state_dict()))
    assert same(take(other), take(loader))
    begun = make(data, device, plan=plan)
    take(begun, 2)
    other.close()
    other.prepare()
    other.load_state_dict(saved(begun.state_dict()))
    assert same(take(other), epochs[0][2:])
    assert same(take(other), epochs[1])


# --- saving and resuming ---


def states_of(loader: Loader) -> tuple[list[Content], list[dict[str, Any]]]:
    """Return a pass and, after each of its batches, the state."""
    batches, states = [], []
    for batch in loader:
        batches.append(content(batch))
        states.append(saved(loader.state_dict()))
    return batches, states


def test_resume_at_each_batch(pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 13), plan_of(RECIPE, size=16)
    loader = make(data, device, plan=plan, raw=False)
    epochs = [states_of(loader) for _ in range(3)]
    last = take(loader)
    # Looking at the state changes nothing.
    undisturbed = make(data, device, plan=plan, raw=False)
    assert all(same(take(undisturbed), batches) for batches in [*(epoch[0] for epoch in epochs), last])
    for (batches, states), following in zip(epochs, [*(epoch[0] for epoch in epochs[1:]), last], strict=True):
        for done, state in enumerate(states, 1):
            resumed = make(data, device, plan=plan, raw=False)
            resumed.load_state_dict(state)
            if done < len(batches):
                assert same(take(resumed), batches[done:])
            assert same(take(resumed), following)


def test_resume_after_a_cut_pass_at_each_batch(pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 13), plan_of(RECIPE, size=16)
    loader = make(data, device, plan=plan)
    take(loader, 2)
    between = saved(loader.state_dict())
    batches, states = states_of(loader)
    following = take(loader)
    for done, state in enumerate(states[:-1], 1):
        resumed = make(data, device, plan=plan)
        resumed.load_state_dict(state)
        assert resumed.epoch == 1
        assert same(take(resumed), batches[done:])
        assert same(take(resumed), following)
    # The state of the pass that was cut goes on with what it missed, or, told so, with the next epoch.
    resumed = make(data, device, plan=plan)
    resumed.load_state_dict(between)
    assert len(take(resumed)) == 2
    resumed.load_state_dict(between)
    resumed.end_pass()
    assert same(take(resumed), batches)


def test_resume_has_the_draws_of_its_epoch(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    take(loader)
    begun = take(loader, 2)
    resumed = make(first(grays, 13), device)
    resumed.load_state_dict(saved(loader.state_dict()))
    assert resumed.epoch == 1
    assert_complete(begun + take(resumed), 13, epoch=1)
    assert_complete(take(resumed), 13, epoch=2)


UNSAVED: dict[str, Any] = RECIPE | {"clahe": {"p": 0.5}, "gaussian_noise": {"p": 0.5}}


@pytest.mark.parametrize("cut", [False, True], ids=["after whole passes", "after a pass that was cut"])
def test_resume_where_dali_cannot_save_its_state(cut: bool, pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 13), plan_of(UNSAVED, size=16)
    assert not plan.checkpoints
    loader = make(data, device, plan=plan)
    if cut:
        take(loader, 2)
    epochs = [states_of(loader) for _ in range(2)]
    last = take(loader)
    assert epochs[0][1][0]["pipeline"] is None
    for number, (batches, states) in enumerate(epochs):
        following = epochs[1][0] if number == 0 else last
        for done, state in enumerate(states, 1):
            resumed = make(data, device, plan=plan)
            resumed.load_state_dict(saved(state))
            if done < len(batches):
                assert resumed.epoch == number + cut
                assert same(take(resumed), batches[done:])
            assert same(take(resumed), following)


def test_passes_where_dali_cannot_save_its_state_are_exact(pictures: Split, device: torch.device) -> None:
    loader = make(first(pictures, 13), device, plan=plan_of(UNSAVED, size=16))
    passes = [take(loader) for _ in range(3)]
    assert all(sorted(indices(batches)) == list(range(13)) for batches in passes)
    assert len({tuple(indices(batches)) for batches in passes}) == 3
    assert loader.epoch == 3


def test_resume_between_epochs_and_before_the_first(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    for epoch in range(3):
        resumed = make(first(grays, 13), device)
        resumed.load_state_dict(saved(loader.state_dict()))
        assert_complete(take(resumed), 13, epoch)
        take(loader)


def test_resume_twice(pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 13), plan_of(RECIPE, size=16)
    loader = make(data, device, plan=plan)
    epochs = [take(loader) for _ in range(3)]
    halves: list[Content] = []
    state = make(data, device, plan=plan).state_dict()
    for _ in range(2 * 4):
        resumed = make(data, device, plan=plan)
        resumed.load_state_dict(saved(state))
        halves += take(resumed, 1)
        state = resumed.state_dict()
    assert same(halves, epochs[0] + epochs[1])


def test_a_resumed_pass_can_be_cut_too(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    take(loader, 1)
    loader.load_state_dict(saved(loader.state_dict()))
    assert len(take(loader, 1)) == 1
    assert_complete(take(loader), 13, epoch=1)


def test_state_may_be_loaded_into_a_loader_that_was_used(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    begun = take(loader, 2)
    state = saved(loader.state_dict())
    take(loader)
    take(loader, 3)
    loader.load_state_dict(state)
    assert_complete(begun + take(loader), 13, epoch=0)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_resume_on_a_rank(rank: int, pictures: Split, device: torch.device) -> None:
    data, plan = first(pictures, 17), plan_of(RECIPE, size=16)
    loader = make(data, device, plan=plan, batch_size=2, shard=Shard(rank, 3))
    take(loader)
    batches, states = states_of(loader)
    following = take(loader)
    for done, state in enumerate(states, 1):
        resumed = make(data, device, plan=plan, batch_size=2, shard=Shard(rank, 3))
        resumed.load_state_dict(state)
        if done < len(batches):
            assert same(take(resumed), batches[done:])
        assert same(take(resumed), following)


@pytest.mark.parametrize("steps", [RECIPE, {"gaussian_noise": {}, "clahe": {}}], ids=["window", "noise"])
def test_validation_that_draws_in_dali_resumes_too(
    steps: dict[str, Any], pictures: Split, device: torch.device
) -> None:
    data, plan = first(pictures, 13), plan_of(steps, "val", 16)
    loader = make(data, device, plan=plan)
    take(loader)
    batches, states = states_of(loader)
    for done, state in enumerate(states, 1):
        resumed = make(data, device, plan=plan)
        resumed.load_state_dict(saved(state))
        if done < len(batches):
            assert same(take(resumed), batches[done:])
        assert same(take(resumed), batches)


@pytest.mark.parametrize("options", [{"drop_last": True}, {"shard": Shard(0, 2)}], ids=["drop_last", "smaller shard"])
def test_after_the_last_batch_it_is_the_next_epoch(options: dict[str, Any], grays: Split, device: torch.device) -> None:
    # DALI still has a batch of padding, which is not to be seen: neither in the position nor as an empty pass.
    samples = 9
    loader = make(first(grays, samples), device, **options)
    begun = take(loader, len(loader))
    assert len(begun) == len(loader)
    assert loader.epoch == 1
    resumed = make(first(grays, samples), device, **options)
    resumed.load_state_dict(saved(loader.state_dict()))
    assert resumed.epoch == 1
    assert len(take(resumed)) == len(loader)
    assert resumed.epoch == 2


def test_end_pass_after_loading(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    for epoch in range(2):
        for after in range(1, 5):
            source = make(first(grays, 13), device)
            for _ in range(epoch):
                take(source)
            take(source, after)
            loader.load_state_dict(saved(source.state_dict()))
            loader.end_pass()
            assert_complete(take(loader), 13, epoch + 1)


def test_end_pass_anywhere_else_skips_nothing(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device)
    loader.end_pass()
    for epoch in range(2):
        assert_complete(take(loader), 13, epoch)
        loader.end_pass()


@pytest.mark.parametrize(
    "other",
    [RECIPE | {"flip": {"p": 0.50001}}, RECIPE | {"warp": {}}, {}, RECIPE | {"rotate": {"p": 0.5, "border": "wrap"}}],
)
def test_state_of_another_plan_is_refused(other: dict[str, Any], grays: Split, device: torch.device) -> None:
    loader = make(grays, device, plan=plan_of(RECIPE))
    take(loader, 1)
    with pytest.raises(UserError, match=r"^aug\.train: not that of the saved run"):
        make(grays, device, plan=plan_of(other)).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"batch_size": 2}, "fit.batch_size: not that of the saved run (4, not 2)"),
        ({"seed": SEED + 1}, "seed: not that of the saved run (3, not 4)"),
        ({"shard": Shard(0, 2)}, "the number of ranks: not that of the saved run"),
        ({"shard": Shard(1, 2)}, "the number of ranks: not that of the saved run"),
        ({"files": 11}, "data: not that of the saved run"),
    ],
)
def test_state_of_other_batches_is_refused(
    other: dict[str, Any], message: str, grays: Split, device: torch.device
) -> None:
    # The place in an epoch means nothing where the epoch has other batches, another order or other files.
    options = dict(other)
    loader = make(grays, device)
    take(loader, 2)
    with pytest.raises(UserError) as caught:
        make(first(grays, options.pop("files", FILES)), device, **options).load_state_dict(loader.state_dict())
    assert str(caught.value).startswith(message)
    assert "Allowed: " in str(caught.value)


def test_state_of_another_rank_is_refused(grays: Split, device: torch.device) -> None:
    state = make(grays, device, shard=Shard(0, 2)).state_dict()
    with pytest.raises(UserError, match="ranks: not that of the saved run"):
        make(grays, device, shard=Shard(1, 2)).load_state_dict(state)


def test_state_goes_on_with_the_same_files_in_another_place(grays: Split, tmp_path: Path, device: torch.device) -> None:
    folder = tmp_path / grays.files[0].parent.name
    folder.mkdir()
    moved = Split(tuple(Path(shutil.copy(file, folder)) for file in grays.files), grays.targets)
    loader, elsewhere = make(grays, device), make(moved, device)
    take(loader, 2)
    elsewhere.load_state_dict(saved(loader.state_dict()))
    loader.load_state_dict(loader.state_dict())
    assert same(take(elsewhere), take(loader))


def test_validation_resumes_too(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device, plan=plan_of(DRAWN, "val"))
    take(loader)
    begun = take(loader, 2)
    resumed = make(first(grays, 13), device, plan=plan_of(DRAWN, "val"))
    resumed.load_state_dict(saved(loader.state_dict()))
    rest = take(resumed)
    assert indices(begun + rest) == list(range(13))
    assert_complete(begun + rest, 13, epoch=0, split="val")


def test_state_is_small_and_holds_no_picture(pictures: Split, device: torch.device) -> None:
    loader = make(pictures, device, plan=plan_of(RECIPE))
    take(loader, 1)
    assert len(loader.state_dict()["pipeline"]) < 5000


def test_more_ranks_than_samples(grays: Split, device: torch.device) -> None:
    with pytest.raises(UserError) as caught:
        make(first(grays, 2), device, shard=Shard(2, 3))
    assert str(caught.value) == ("data: 2 pictures in train for 3 ranks. Allowed: at least one picture a rank.")
    with pytest.raises(UserError, match=r"^data: 0 pictures in val for 1 ranks"):
        make(Split((), ()), device, plan=plan_of({}, "val"))


def test_a_loader_reads_the_files_it_was_given(tmp_path: Path, device: torch.device) -> None:
    # A name with a blank, a comma and letters of another script, in a folder of that kind.
    folder = tmp_path / "a b, ü"
    folder.mkdir()
    file = folder / "photo 1, ß.png"
    Image.new("RGB", (SIZE, SIZE), (9, 9, 9)).save(file)
    ((images, targets, _),) = take(make(Split((file,), (4,)), device, plan=plan_of({}, "val")))
    assert (images.flatten().tolist(), targets.tolist()) == ([9] * 3 * SIZE * SIZE, [4])
