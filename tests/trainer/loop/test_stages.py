"""Progressive resizing: settings of stages, sizes of each epoch, one pipeline at a time, steps, exact resuming."""

import gc
import weakref
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from fakes import CLASSES, frozen, needs_gpu, on, tiny_model
from nvidia.dali import backend
from nvidia.dali.pipeline import Pipeline
from passes import make, saved
from stages import SIZES, STAGES, config_of, content, same, staged, take, wait_for_threads

import augment.pipeline.loader
from augment.cli.compose import compose
from augment.data.dataset import Dataset, Split
from augment.params import Size
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.graph.sample_order import RankShard
from augment.recipe.plan import build_plan
from augment.support.errors import UserError
from trainer.callbacks.optimizer_steps import PrepareValidation
from trainer.loop.callback import RunDescription
from trainer.loop.learner import Learner
from trainer.loop.progress import Position
from trainer.loop.progressive_resizing import StagedLoader
from trainer.run.build import make_loader, make_train_loader
from trainer.run.config.checks import check_config
from trainer.run.config.schema import Config, parse_config


@pytest.fixture
def data(image_files: Split, monkeypatch: pytest.MonkeyPatch) -> Split:
    """The images that every configuration finds."""
    monkeypatch.setattr("trainer.run.config.schema.load_dataset", lambda *_: Dataset(CLASSES, image_files, image_files))
    return image_files


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[Pipeline]":
    """Every pipeline that a loader built and somebody still holds."""
    built: weakref.WeakSet[Pipeline] = weakref.WeakSet()
    build = augment.pipeline.loader.build_pipeline

    def spy(*given: Any, **options: Any) -> Pipeline:
        pipeline = build(*given, **options)
        built.add(pipeline)
        return pipeline

    monkeypatch.setattr(augment.pipeline.loader, "build_pipeline", spy)
    return built


# --- settings ---


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (["small"], "fit.stages: ['small'] is not a mapping."),
        (
            {"small": 3},
            "fit.stages.small: 3 is not allowed. Use a mapping, such as fit.stages.small.epochs=3. Allowed keys",
        ),
        ({"small": {"sise": 8}}, "fit.stages.small.sise: unknown key. Did you mean 'size'?"),
        ({"small": {"size": 7}}, "fit.stages.small.size: 7 is not allowed. Use a whole number from 8 to 4096"),
        ({"small": {"batch_size": 2.5}}, "fit.stages.small.batch_size: 2.5 is not allowed."),
        ({"a": {}, "b": {"epochs": None}}, "fit.stages.b.epochs is missing, as in fit.stages.a. Set one of them"),
        ({"a": {"epochs": 1}}, "fit.stages: the stages have 1 epoch, but fit.epochs is 5. Make both equal"),
        (
            {"a": {"epochs": 5}, "b": {}},
            "fit.stages: the stages have 5 epochs, and fit.epochs is 5. So no epoch remains",
        ),
    ],
)
def test_mistakes(stages: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(stages)
    assert str(caught.value).startswith(message)


def test_what_is_written_down_is_complete_and_makes_the_same_stages() -> None:
    parsed = config_of()
    written = parsed.resolved["fit"]["stages"]
    assert written["middle"] == {"epochs": 1, "size": 16, "batch_size": None}
    assert list(written) == ["small", "middle", "last"]
    assert parse_config(parsed.resolved).fit == parsed.fit


def test_stages_are_overridden_by_name() -> None:
    given = "fit.stages={small: {epochs: 12, size: 96}, full: {}}"
    composed = compose(["fit.epochs=20", given, "fit.stages.small.size=112", "fit.stages.small.batch_size=128"])
    small, full = parse_config(composed).fit.full_stages(Size(128, 128))
    assert (small.start, small.epochs, small.size.plain, small.batch_size) == (0, 12, 112, 128)
    assert (full.start, full.epochs, full.size.plain, full.batch_size) == (12, 8, 128, 64)
    assert not parse_config(compose(["fit.epochs=20"])).fit.stages


def test_one_number_is_the_shorter_side_of_images_that_are_not_square() -> None:
    given = ["fit.stages={small: {epochs: 2, size: 90}, other: {epochs: 1, size: [60, 70]}, full: {}}"]
    config = parse_config(compose(["aug.size=[120,161]", *given]))
    sizes = [stage.size for stage in config.fit.full_stages(config.aug.size)]
    assert sizes == [(90, 121), (60, 70), (120, 161)]
    assert [stage["size"] for stage in config.resolved["fit"]["stages"].values()] == [90, [60, 70], None]
    assert config.resolved["aug"]["size"] == [120, 161]
    again = parse_config(config.resolved)
    assert (again.aug, again.fit) == (config.aug, config.fit)
    assert str(config.fit.full_stages(config.aug.size)[0]) == "90 x 121 px, batch 64"


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_each_size_must_fit_through_the_model() -> None:
    config = config_of({"small": {"epochs": 2, "size": 64}, "last": {}})
    check_config(config)
    sections = {**config.resolved, "model": {"kind": "timm", "name": "vit_tiny_patch16_224"}, "aug": {"size": 224}}
    with pytest.raises(UserError, match=r"^fit\.stages\.small\.size=64: the model cannot take images of this size"):
        check_config(parse_config(sections))


# --- loaders ---


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
    monkeypatch.setattr("trainer.run.config.schema.load_dataset", lambda *_: Dataset(CLASSES, image_files, image_files))
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


# --- fits ---


def learner_of(data: Split, *callbacks: Any, **fit: Any) -> Learner:
    config = config_of(**fit)
    return Learner(
        tiny_model(),
        staged(config, data),
        make_loader(config, build_plan(config.aug, "val"), data),
        config.fit,
        optimizer=frozen,
        callbacks=callbacks,
        run=RunDescription(classes=CLASSES),
    )


def note(notes: list[tuple[bool, int, int, int]]) -> Any:
    return on(
        "after_batch",
        lambda learner: notes.append(
            (learner.training, learner.progress.batches_done - 1, *learner.batch.images.shape[::3])
        ),
    )


@pytest.mark.parametrize(("limit", "batches"), [(None, [3, 3, 2, 2, 2]), (2, [2] * 5), (1, [1] * 5)])
def test_steps_count_the_batches_of_all_stages(limit: int | None, batches: list[int], data: Split) -> None:
    notes: list[tuple[bool, int, int, int]] = []
    learner = learner_of(data, note(notes), limit_batches=limit)
    learner.fit()
    assert learner.progress.total_batches == sum(batches)
    assert [step for training, step, *_ in notes if training] == list(range(sum(batches)))
    sizes = [(count, size) for size, counts in SIZES for count in counts[:limit]]
    assert [(count, size) for training, _, count, size in notes if training] == sizes
    assert {size for training, *_, size in notes if not training} == {12}


def test_validation_is_prepared_while_the_first_epoch_trains(data: Split, alive: "weakref.WeakSet[Pipeline]") -> None:
    counts: list[int] = []

    def look(learner: Learner) -> None:
        wait_for_threads()
        counts.append(len(alive))

    learner = learner_of(data, PrepareValidation(), on("after_train", look))
    learner.fit(Position(4, 0))  # no other stage comes after it
    # One for training and one for validation.
    assert counts == [2]


# --- resuming ---


@pytest.mark.parametrize(("epoch", "done"), [(1, 2), (2, 0), (3, 1)])
def test_resume_in_any_stage(epoch: int, done: int, data: Split) -> None:
    whole = staged(config_of(), data)
    epochs = [take(whole) for _ in SIZES]
    loader = staged(config_of(), data)
    for _ in range(epoch):
        take(loader)
    if done:
        take(loader, done)
    resumed = staged(config_of(), data)
    resumed.load_state_dict(saved(loader.state_dict()))
    left = epochs[epoch][done:]
    if left:
        assert same(take(resumed), left)
    for following in epochs[epoch + 1 :]:
        assert same(take(resumed), following)


def test_one_rank_finishes_an_epoch_of_two(image_files: Split) -> None:
    stages = config_of(STAGES).fit.full_stages(config_of(STAGES).aug.size)

    def loader(rank: int, ranks: int) -> StagedLoader:
        shard = RankShard(rank, ranks)
        loaders = [make(image_files, torch.device("cpu"), batch_size=4 // ranks, shard=shard) for _ in stages]
        return StagedLoader(stages, loaders)

    before = [loader(rank, 2) for rank in range(2)]
    seen = [index for one in before for batch in islice(one, 1) for index in batch.indices.tolist()]
    states = [saved(one.state_dict()) for one in before]
    after = loader(0, 1)
    after.load_state_dict(states[0], states)
    seen += [index for batch in after for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(len(image_files)))


def test_all_stages_decode_as_the_saved_run_did(data: Split) -> None:
    config = config_of()
    chosen, other = (Placement("gpu", hw_decoder_load=load, load_auto=True) for load in (0.3, 0.6))
    saved_one, resumed = (make_train_loader(config, data, placement) for placement in (chosen, other))
    assert isinstance(resumed, StagedLoader)
    resumed.load_state_dict(saved_one.state_dict())
    assert [loader.placement.hw_decoder_load for loader in resumed._loaders] == [0.3] * 3


def changed(**changes: Any) -> dict[str, Any]:
    return {name: values | changes.get(name, {}) for name, values in STAGES.items()}


@pytest.mark.parametrize(
    ("other", "resumes"),
    [
        (config_of(changed(last={"size": 24})), True),
        (config_of(changed(middle={"epochs": 2})), True),
        (config_of(epochs=7), True),
        (config_of(changed(small={"epochs": 1})), False),
        (config_of(changed(small={"size": 9})), False),
        (config_of(changed(small={"batch_size": 4})), False),
        (config_of(changed(middle={"size": 12})), False),
    ],
)
def test_only_stages_to_come_may_change(other: Config, resumes: bool, data: Split) -> None:
    loader = staged(config_of(), data)
    for _ in range(2):
        take(loader)
    take(loader, 1)
    state = saved(loader.state_dict())
    if resumes:
        make_train_loader(other, data).check_state(state)
        return
    with pytest.raises(UserError, match=r"^fit\.stages: .* Change only later stages"):
        make_train_loader(other, data).check_state(state)


def test_a_run_without_stages_does_not_resume_with_some(data: Split) -> None:
    state = make_train_loader(config_of({}), data).state_dict()
    with pytest.raises(UserError, match=r"^fit\.stages: "):
        staged(config_of(), data).check_state(state)
