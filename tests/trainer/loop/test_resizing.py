"""Stages: each epoch with its sizes, every sample once, and one pipeline at a time."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from fakes import CLASSES, needs_gpu
from nvidia.dali import backend
from nvidia.dali.pipeline import Pipeline
from stages import SIZES, config_of, content, same, staged, take, wait_for_threads

from augment.data.dataset import Dataset, Split
from augment.params import Size
from augment.recipe.plan import build_plan
from trainer.run.build import make_loader


def test_each_epoch_has_its_sizes_and_every_sample_once(data: Split) -> None:
    loader = staged(config_of(), data)
    for epoch, (size, batches) in enumerate(SIZES):
        assert (loader.epoch, len(loader), loader.batches_in(epoch)) == (epoch, len(batches), len(batches))
        taken = take(loader)
        assert [(side, len(indices)) for side, indices, _ in taken] == [(size, count) for count in batches]
        assert sorted(index for _, indices, _ in taken for index in indices) == list(range(len(data)))


def test_a_stage_draws_what_a_loader_of_its_own_would_in_that_epoch(data: Split) -> None:
    # The order and the window are DALI's, from the epoch in which it was built.
    loader = staged(config_of(), data)
    epochs = [take(loader) for _ in SIZES]
    for start, size, batch_size in ((0, 8, 3), (2, 16, 4), (3, 12, 4)):
        config = config_of({}, batch_size=batch_size)
        plan = build_plan(replace(config.aug, size=Size(size, size)), "train")
        alone = make_loader(config, plan, data)
        alone.start_at(start)
        assert same([content(batch) for batch in alone], epochs[start])
    assert not same(epochs[3], epochs[4])


@pytest.mark.parametrize("after", [1, 2])
def test_a_pass_that_was_cut_is_followed_by_the_next_epoch(after: int, data: Split) -> None:
    whole, cut = staged(config_of(), data), staged(config_of(), data)
    epochs = [take(whole) for _ in SIZES]
    for _ in range(2):
        take(cut, after)
    assert same(take(cut), epochs[2])
    assert same(take(cut), epochs[3])


def test_one_pipeline_is_alive_and_the_next_one_only_in_the_last_epoch_of_a_stage(
    data: Split, alive: "weakref.WeakSet[Pipeline]"
) -> None:
    loader = staged(config_of({"small": {"epochs": 2, "size": 8, "batch_size": 1}, "last": {}}, epochs=3), data)
    counts = []
    for _ in range(3):
        for _ in loader:
            wait_for_threads()
            counts.append(len(alive))
    assert counts == [1] * 7 + [2] * 7 + [1, 1]
    loader.close()
    assert len(alive) == 0


@needs_gpu
@pytest.mark.alone
def test_changes_of_stage_leave_no_memory_behind(image_files: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.config.load_dataset", lambda *_: Dataset(CLASSES, image_files, image_files))
    sizes = [64, 128] * 6
    stages = {f"s{i}": {"epochs": 1, "size": size, "batch_size": 2 + i % 2} for i, size in enumerate(sizes)}
    loader = staged(config_of(stages, epochs=len(sizes), device="cuda"), image_files)
    free = []
    for number, size in enumerate(sizes):
        shapes = []
        for batch in loader:
            assert batch.images.is_cuda
            shapes.append(tuple(batch.images.shape[1:]))
        assert set(shapes) == {(3, size, size)}
        assert len(shapes) == -(-len(image_files) // (2 + number % 2))
        free.append(free_memory())
    # What the first stages took is what all take: libraries, and a pool that is grown once.
    assert free[3] - min(free[4:]) < 64 * 2**20
    loader.close()
    del batch
    assert free_memory() >= free[3] - 16 * 2**20


def free_memory() -> int:
    wait_for_threads()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    backend.ReleaseUnusedMemory()  # type: ignore[attr-defined]
    return torch.cuda.mem_get_info()[0]
