"""Exact epochs from real DALI: each sample once over all ranks, and what a batch holds."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from passes import (
    DRAWN,
    FILES,
    RECIPE,
    Content,
    assert_complete,
    content,
    first,
    indices,
    level,
    make,
    plan_of,
    same,
    take,
)
from torch import Tensor

from augment.data.dataset import Split
from augment.pipeline.graph.sample_order import RankShard
from augment.recipe.steps import SplitName
from augment.support.errors import UserError
from augment.support.formatting import amount

# --- exact epochs ---

COUNTS = sorted({(b, n) for b in (1, 4) for n in (1, b - 1, b, b + 1, 2 * b + 1) if n > 0})


@pytest.mark.parametrize("name", ["a\nb.jpg", "a.jpg ", "a.jpg\n", "a b 3.jpg", "ü\t.jpg"])
def test_names_with_white_space_are_read(name: str, tmp_path: Path, gray_files: Split) -> None:
    names = ["0.jpg", name, "2.jpg"]
    files = [Path(shutil.copy(str(file), tmp_path / name)) for file, name in zip(gray_files.files, names, strict=False)]
    plan, device = plan_of({}, "val"), torch.device("cpu")
    expected = take(make(first(gray_files, 3), device, plan=plan))
    assert same(take(make(Split(tuple(files), gray_files.targets[:3]), device, plan=plan)), expected)


@pytest.mark.parametrize(("batch_size", "samples"), COUNTS)
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_sample_once_an_epoch_over_all_ranks(
    batch_size: int, samples: int, split: SplitName, world_size: int, grays: Split, device: torch.device
) -> None:
    data, plan = first(grays, samples), plan_of({}, split)
    if samples < world_size:
        with pytest.raises(UserError, match=f"^data: {split} has {amount(samples, 'image')} for {world_size} ranks"):
            make(data, device, plan=plan, batch_size=batch_size, shard=RankShard(0, world_size))
        return
    loaders = [
        make(data, device, plan=plan, batch_size=batch_size, shard=RankShard(rank, world_size))
        for rank in range(world_size)
    ]
    assert sum(loader.samples for loader in loaders) == samples
    assert {len(loader) for loader in loaders} == {-(-samples // (batch_size * world_size))}
    for _ in range(3):
        seen, shares, together = [], [], [0] * len(loaders[0])
        for loader in loaders:
            whole = list(loader)
            assert len(whole) == len(loader)
            shares.append([batch.share for batch in whole])
            together = [count + len(batch) * (batch.share > 0) for count, batch in zip(together, whole, strict=True)]
            assert all(len(batch) == 1 for batch in whole if not batch.share)
            batches = [content(batch) for batch in whole if batch.share]
            sizes = [len(batch[1]) for batch in batches]
            assert sum(sizes) == loader.samples
            assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
            assert 1 <= sizes[-1] <= batch_size
            for images, targets, index in batches:
                assert targets.tolist() == [data.targets[i] for i in index.tolist()]
                levels = torch.tensor([level(i) for i in index.tolist()])
                assert torch.equal(images[:, 0, 0, 0].long(), levels)
            seen += indices(batches)
        assert sorted(seen) == list(range(samples))
        assert [sum(parts) for parts in zip(*shares, strict=True)] == pytest.approx([1] * len(shares[0]))
        for loader in loaders:
            assert [loader.images_in(0, number, 1) for number in range(len(loader))] == together
            assert loader.images_in(0, 0, len(loader)) == samples


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"), [(3, 4, [3]), (4, 4, [4]), (5, 4, [4]), (11, 4, [4, 4]), (3, 1, [1, 1, 1])]
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


def test_shuffles(grays: Split, device: torch.device) -> None:
    loader, twin, other = (make(grays, device, seed=seed) for seed in (0, 0, 1))
    epochs, twins, others = ([take(each) for _ in range(3)] for each in (loader, twin, other))
    orders = [indices(epoch) for epoch in epochs + others]
    assert len({tuple(order) for order in orders}) == 6
    assert list(range(FILES)) not in orders
    assert all(same(epoch, again) for epoch, again in zip(epochs, twins, strict=True))


def test_validation_keeps_its_order_and_its_draws(grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 13), device, plan=plan_of(DRAWN, "val"))
    for cut in (None, 1, 3):
        take(loader, cut)
        batches = take(loader)
        assert indices(batches) == list(range(13))
        assert_complete(batches, 13, epoch=0, split="val")
    loader.close()
    assert_complete(take(loader), 13, epoch=0, split="val")


@pytest.mark.parametrize(
    "steps",
    [
        {"gaussian_noise": {"p": 0.5}},
        {"flip": {}, "one_of": {"steps": {"salt_and_pepper": {}, "shot_noise": {}}}},
        {"erase": {"fill": "noise"}, "clahe": {}},
    ],
    ids=["a step", "within a policy", "and what cannot be saved"],
)
def test_validation_with_noise_has_the_same_noise(steps: dict[str, Any], varied: Split, device: torch.device) -> None:
    plan = plan_of(steps, "val", 16)
    assert plan.draws_in_dali
    loader = make(varied, device, plan=plan)
    passes = [take(loader) for _ in range(2)]
    take(loader, 1)
    passes.append(take(loader))
    assert same(passes[0], passes[1])
    assert same(passes[0], passes[2])
    plain = take(make(varied, device, plan=plan_of({}, "val", 16)))
    assert not same(passes[0], plain)
    # In training it is new noise each time.
    training = make(varied, device, plan=plan_of(steps, "train", 16))
    by_index = [dict(pairs(take(training))) for _ in range(2)]
    assert any(not torch.equal(by_index[0][index], by_index[1][index]) for index in range(len(varied)))


def pairs(batches: list[Content]) -> Iterator[tuple[int, Tensor]]:
    for images, _, order in batches:
        yield from zip(order.tolist(), images, strict=True)


# --- what a batch is ---


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({"raw": False}, torch.float32), ({"raw": False, "half": True}, torch.float16), ({}, torch.uint8)],
)
def test_batch(options: dict[str, bool], dtype: torch.dtype, varied: Split, device: torch.device) -> None:
    loader = make(varied, device, plan=plan_of(RECIPE, size=16), **options)
    for batch in loader:
        assert len(batch) == len(batch.targets) == len(batch.indices) == len(batch.images)
        assert batch.images.shape[1:] == (3, 16, 16)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.images.dtype == dtype
        assert batch.targets.dtype == batch.indices.dtype == torch.int64
        assert {t.device.type for t in (batch.images, batch.targets, batch.indices)} == {device.type}
        assert batch.targets.tolist() == [varied.targets[i] for i in batch.indices.tolist()]


def test_batches_that_are_kept_stay_as_they_were(varied: Split, device: torch.device) -> None:
    loader = make(first(varied, 13), device, plan=plan_of(RECIPE, size=16))
    kept, copies = [], []
    for batch in itertools.chain(loader, loader, loader):
        kept.append(batch)
        copies.append(content(batch))
    loader.close()
    take(make(first(varied, 13), device, plan=plan_of(RECIPE, size=16), seed=9))
    assert len(kept) == 12
    assert same([content(batch) for batch in kept], copies)
