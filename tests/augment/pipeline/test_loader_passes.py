"""Passes that are cut short or prepared, and passes of any epoch: what the next one is."""

import copy
import multiprocessing
import pickle
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import needs_gpu
from passes import RECIPE, assert_complete, content, first, indices, make, plan_of, same, take

from augment.data.dataset import Split
from augment.pipeline.batch import Batch
from augment.pipeline.graph.build import BuiltPipeline
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.graph.sample_order import RankShard
from augment.pipeline.loader import Loader
from augment.recipe.steps import SplitName
from augment.support.errors import UserError

# --- passes that are cut short ---


def fail_in_the_loop(loader: Loader, after: int) -> None:
    for number, _ in enumerate(loader, 1):
        if number == after:
            raise RuntimeError("in the loop")


def test_a_fork_rejects_a_loader_that_was_used_before(grays: Split) -> None:
    loader = make(first(grays, 9), torch.device("cpu"))

    def child(pipe: Connection) -> None:
        try:
            take(loader)
        except UserError as error:
            pipe.send(str(error))

    take(loader, 1)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,), daemon=True)
    process.start()
    try:
        assert ours.poll(20)
        assert ours.recv().startswith("This loader was used before the process was forked.")
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("copy_it", [copy.deepcopy, pickle.dumps])
def test_a_loader_cannot_be_copied(copy_it: Callable[[Loader], object], grays: Split) -> None:
    loader = make(first(grays, 9), torch.device("cpu"))
    assert repr(loader) == "Loader(train, 9 samples, 3 batches, cpu)"
    with pytest.raises(UserError, match=r"^A loader cannot be copied or sent to another process"):
        copy_it(loader)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_pass_cannot_go_on_after_another_has_begun(split: SplitName, grays: Split, device: torch.device) -> None:
    loader = make(first(grays, 9), device, plan=plan_of({}, split), batch_size=2)
    older = iter(loader)
    take(older, 2)
    newer = iter(loader)
    begun = take(newer, 1)
    with pytest.raises(UserError, match=r"^This pass over the loader ended when another pass began"):
        next(older)
    assert sorted(indices([*begun, *take(newer)])) == list(range(9))


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


@pytest.mark.parametrize("after", [1, 2])
def test_ranks_stay_together(after: int, grays: Split, device: torch.device) -> None:
    # 9 samples, in batches of 4: the second batch of rank 0 is padding, so that both ranks make as many.
    loaders = [make(first(grays, 9), device, shard=RankShard(rank, 2)) for rank in (0, 1)]
    for loader in loaders:
        assert [batch.share for batch, _ in zip(loader, range(after), strict=False)] == [0.5, loader is loaders[1]][
            :after
        ]
    for _ in range(2):
        seen = [batch.indices for loader in loaders for batch in loader if batch.share]
        assert sorted(torch.cat(seen).tolist()) == list(range(9))


@pytest.mark.parametrize("after", [None, 4, 2])
def test_close_and_continue(after: int | None, grays: Split, device: torch.device) -> None:
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


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("steps", [RECIPE, NOISE], ids=["recipe", "noise"])
def test_what_is_prepared_is_the_same(
    steps: dict[str, Any], split: SplitName, varied: Split, device: torch.device
) -> None:
    data, plan = first(varied, 13), plan_of(steps, split, 16)
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


@needs_gpu
def test_decoded_images_in_gpu_memory_are_not_read_again(image_files: Split, tmp_path: Path) -> None:
    copies = tuple(Path(shutil.copy(file, tmp_path)) for file in image_files.files)
    data, plan = Split(copies, image_files.targets), plan_of(RECIPE, "train", 16)
    placement = Placement("gpu", "mixed", cache=64, hw_decoder_load=0.0)
    expected, found = (make(data, torch.device("cuda"), plan=plan, placement=placement) for _ in range(2))
    passes = [take(expected) for _ in range(5)]
    expected.close()
    assert same(take(found), passes[0])
    for file in copies:
        file.unlink()
    for batches in passes[1:]:
        assert same(take(found), batches)


def test_a_pass_after_ctrl_c_at_a_first_batch_is_complete(grays: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(first(grays, 13), torch.device("cpu"))
    take(loader)
    take_outputs = BuiltPipeline.take_outputs

    def interrupted(pipeline: BuiltPipeline, stream: object) -> None:
        take_outputs(pipeline, stream)  # DALI waits in C++: Python raises once it has returned, and the batch is lost
        raise KeyboardInterrupt

    monkeypatch.setattr(BuiltPipeline, "take_outputs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(loader)
    monkeypatch.undo()
    for epoch in (1, 2):
        assert_complete(take(loader), 13, epoch)
