"""A loader that was saved goes on with the same batches, wherever it was."""

from itertools import islice
from typing import Any

import pytest
import torch
from fakes import needs_gpu
from passes import RECIPE, assert_complete, first, make, plan_of, same, saved, states_of, take

from augment.data.dataset import Split
from augment.pipeline.graph.sample_order import RankShard
from augment.pipeline.loader import Loader


@pytest.mark.parametrize("shard", [RankShard(), RankShard(1, 3)], ids=str)
def test_resume_at_each_batch(shard: RankShard, varied: Split, device: torch.device) -> None:
    data, plan = first(varied, 13), plan_of(RECIPE, size=16)
    options: dict[str, Any] = {"plan": plan, "raw": False, "shard": shard, "batch_size": 4 // shard.world_size + 1}
    loader = make(data, device, **options)
    epochs = [states_of(loader) for _ in range(2)]
    last = take(loader)
    # Looking at the state changes nothing.
    undisturbed = make(data, device, **options)
    assert all(same(take(undisturbed), batches) for batches in [*(epoch[0] for epoch in epochs), last])
    for (batches, states), following in zip(epochs, [*(epoch[0] for epoch in epochs[1:]), last], strict=True):
        for done, state in enumerate(states, 1):
            resumed = make(data, device, **options)
            resumed.load_state_dict(state)
            if done < len(batches):
                assert same(take(resumed), batches[done:])
            assert same(take(resumed), following)


UNSAVED: dict[str, Any] = RECIPE | {"clahe": {"p": 0.5}, "gaussian_noise": {"p": 0.5}}


@needs_gpu
@pytest.mark.parametrize("steps", [RECIPE, UNSAVED], ids=["saved", "unsaved"])
def test_passes_of_files_resume_on_the_gpu(steps: dict[str, Any], image_files: Split) -> None:
    data, plan, cuda = first(image_files, 13), plan_of(steps, size=16), torch.device("cuda")
    loader = make(data, cuda, plan=plan)
    take(loader)
    batches, states = states_of(loader)
    following = take(loader)
    resumed = make(data, cuda, plan=plan)
    resumed.load_state_dict(states[1])
    assert same(take(resumed), batches[2:])
    assert same(take(resumed), following)


@pytest.mark.parametrize("cut", [False, True], ids=["after whole passes", "after a pass that was cut"])
def test_resume_where_dali_cannot_save_its_state(cut: bool, varied: Split, device: torch.device) -> None:
    data, plan = first(varied, 13), plan_of(UNSAVED, size=16)
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


@pytest.mark.parametrize("steps", [RECIPE, {"gaussian_noise": {}, "clahe": {}}], ids=["window", "noise"])
def test_validation_that_draws_in_dali_resumes_too(steps: dict[str, Any], varied: Split, device: torch.device) -> None:
    data, plan = first(varied, 13), plan_of(steps, "val", 16)
    loader = make(data, device, plan=plan)
    take(loader)
    batches, states = states_of(loader)
    for done, state in enumerate(states, 1):
        resumed = make(data, device, plan=plan)
        resumed.load_state_dict(saved(state))
        if done < len(batches):
            assert same(take(resumed), batches[done:])
        assert same(take(resumed), batches)


@pytest.mark.parametrize(
    "options", [{"drop_last": True}, {"shard": RankShard(0, 2)}], ids=["drop_last", "smaller shard"]
)
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


def test_state_is_small_and_holds_no_image(varied: Split, device: torch.device) -> None:
    loader = make(varied, device, plan=plan_of(RECIPE))
    take(loader, 1)
    assert len(loader.state_dict()["pipeline"]) < 5000


@pytest.mark.parametrize("kind", ["files", "memory"])
@pytest.mark.parametrize(
    ("before", "after", "drop_last"), [(1, 2, False), (2, 3, False), (3, 1, False), (1, 2, True), (3, 1, True)]
)
def test_another_number_of_ranks_reads_the_rest_of_an_epoch(
    before: int, after: int, drop_last: bool, kind: str, image_files: Split, varied: Split, device: torch.device
) -> None:
    """Each image comes once, also if the fit stops again in that epoch. The next epoch is whole."""
    data = first(image_files if kind == "files" else varied, 29)
    options: dict[str, Any] = {"plan": plan_of(RECIPE), "drop_last": drop_last}
    whole = 24 if drop_last else 29

    def ranks(count: int) -> list[Loader]:
        shards = [RankShard(rank, count) for rank in range(count)]
        return [make(data, device, batch_size=6 // count, shard=shard, **options) for shard in shards]

    def read(loaders: list[Loader], batches: int | None = None) -> list[int]:
        passes = (batch for loader in loaders for batch in islice(loader, batches))
        return [index for batch in passes if batch.share for index in batch.indices.tolist()]

    def resumed(loaders: list[Loader]) -> list[Loader]:
        states = [saved(loader.state_dict()) for loader in loaders]
        found = ranks(after)
        for rank, loader in enumerate(found):
            loader.load_state_dict(states[rank if rank < len(states) else 0], states)
        return found

    loaders = ranks(before)
    read(loaders)
    seen = read(loaders, 2)
    loaders = resumed(loaders)
    seen += read(loaders, 1)
    loaders = resumed(loaders)
    assert {(loader.epoch, loader.batch) for loader in loaders} == {(1, 3)}
    seen += read(loaders)
    assert len(seen) == len(set(seen)) == whole
    assert {(loader.epoch, loader.batch) for loader in loaders} == {(2, 0)}
    following = read(loaders)
    assert len(following) == len(set(following)) == whole


def test_images_before_an_exact_resume_do_not_come_again(varied: Split) -> None:
    """The fit stops twice in an epoch. Only after the second stop, the number of ranks changes."""
    data, cpu = first(varied, 29), torch.device("cpu")
    loader = make(data, cpu, plan=plan_of(RECIPE), batch_size=6)
    seen = [index for batch in islice(loader, 2) for index in batch.indices.tolist()]
    resumed = make(data, cpu, plan=plan_of(RECIPE), batch_size=6)
    resumed.load_state_dict(saved(loader.state_dict()))
    seen += next(iter(resumed)).indices.tolist()
    for rank in range(2):
        other = make(data, cpu, plan=plan_of(RECIPE), batch_size=3, shard=RankShard(rank, 2))
        other.load_state_dict(saved(resumed.state_dict()))
        seen += [index for batch in other if batch.share for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(29))


def test_each_of_many_ranks_gets_one_of_the_last_images(varied: Split) -> None:
    """Five images are left for six ranks, so one of them comes twice."""
    data, cpu = first(varied, 29), torch.device("cpu")
    loader = make(data, cpu, plan=plan_of(RECIPE), batch_size=6)
    seen = torch.cat([batch.indices for batch in islice(loader, 4)]).tolist()
    for rank in range(6):
        other = make(data, cpu, plan=plan_of(RECIPE), batch_size=1, shard=RankShard(rank, 6))
        other.load_state_dict(saved(loader.state_dict()))
        (batch,) = other
        seen += batch.indices.tolist()
    assert set(seen) == set(range(29))
    assert len(seen) == 30
