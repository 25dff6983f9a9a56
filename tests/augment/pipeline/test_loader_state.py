"""Which saved states a loader takes: those of other batches are rejected, some others resume between two epochs."""

import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from passes import FILES, RECIPE, SEED, assert_complete, first, make, plan_of, same, saved, states_of, take

from augment.data.dataset import Split
from augment.pipeline import loader_state
from augment.pipeline.graph.sample_order import RankShard
from augment.support.errors import UserError


def test_names_are_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(tuple(Path("/data", f"class{n % 2}", f"{n}.jpg") for n in range(5)), (0, 1, 0, 1, 0))
    lines = b"class0/0.jpg 0\nclass1/1.jpg 1\nclass0/2.jpg 0\nclass1/3.jpg 1\nclass0/4.jpg 0"
    for most in (2, 5, 6):
        monkeypatch.setattr(loader_state, "_HASHED", most)
        assert loader_state.digest_of(split) == blake2b(lines, digest_size=8).hexdigest()


@pytest.mark.parametrize(
    "other",
    [RECIPE | {"flip": {"p": 0.50001}}, RECIPE | {"warp": {}}, {}, RECIPE | {"rotate": {"p": 0.5, "border": "wrap"}}],
)
def test_state_of_another_plan_is_rejected(other: dict[str, Any], grays: Split, device: torch.device) -> None:
    loader = make(grays, device, plan=plan_of(RECIPE))
    take(loader, 1)
    with pytest.raises(UserError, match=r"^aug\.train differs from the saved run"):
        make(grays, device, plan=plan_of(other)).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"batch_size": 2}, "fit.batch_size differs from the saved run (4, not 2)"),
        ({"seed": SEED + 1}, "seed differs from the saved run (3, not 4)"),
        ({"files": 11}, "data differs from the saved run"),
    ],
)
def test_state_of_other_batches_is_rejected(
    other: dict[str, Any], message: str, grays: Split, device: torch.device
) -> None:
    # The place in an epoch means nothing where the epoch has other batches, another order or other files.
    options = dict(other)
    loader = make(grays, device)
    take(loader, 2)
    with pytest.raises(UserError) as caught:
        make(first(grays, options.pop("files", FILES)), device, **options).load_state_dict(loader.state_dict())
    assert str(caught.value).startswith(message)
    assert "Resume with " in str(caught.value)


def test_earlier_versions_did_not_save_what_other_ranks_need(grays: Split) -> None:
    loader = make(grays, torch.device("cpu"))
    take(loader, 2)
    state = loader.state_dict()
    del state["seen"]
    for rank in (0, 1):
        other = make(grays, torch.device("cpu"), shard=RankShard(rank, 2), batch_size=2)
        with pytest.raises(UserError, match=r"^fit\.gpus differs from the saved run \(1, not 2\)\. Resume with "):
            other.load_state_dict(state)


@pytest.mark.parametrize("consumed", [10**9, -1])
def test_batches_that_no_pipeline_made_are_rejected(consumed: int, grays: Split) -> None:
    """All batches since the pipeline was built would be made again."""
    loader = make(grays, torch.device("cpu"))
    take(loader, 2)
    with pytest.raises(UserError, match=r"^state: consumed is .* undamaged"):
        make(grays, torch.device("cpu")).load_state_dict(loader.state_dict() | {"consumed": consumed, "pipeline": None})


@pytest.mark.parametrize("state", [None, {}, {"model": 1}])
def test_what_is_no_state_is_rejected(state: Any, grays: Split) -> None:
    with pytest.raises(
        UserError, match=r"^state: (NoneType|dict) is not a loader's state\. Pass the result of loader\.state_dict"
    ):
        make(first(grays, 9), torch.device("cpu")).load_state_dict(state)


@pytest.mark.parametrize("limit", [None, 2])
def test_between_epochs_another_number_of_ranks_resumes(limit: int | None, grays: Split, device: torch.device) -> None:
    data = first(grays, 13)
    loader = make(data, device, batch_size=4)
    take(loader, limit)
    loader.end_pass()
    ranks = [make(data, device, batch_size=2, shard=RankShard(rank, 2)) for rank in (0, 1)]
    for one in ranks:
        one.load_state_dict(saved(loader.state_dict()))
        assert one.epoch == 1
    seen = [batch.indices for one in ranks for batch in one if batch.share]
    assert sorted(torch.cat(seen).tolist()) == list(range(13))


def test_state_of_other_operators_resumes_between_epochs_only(
    grays: Split, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    data, plan = first(grays, 13), plan_of(RECIPE)
    (_, states), (_, others) = states_of(make(data, device)), states_of(make(data, device, plan=plan))
    mixed = [state | {"pipeline": other["pipeline"]} for state, other in zip(states, others, strict=True)]
    resumed = make(data, device)
    with pytest.raises(UserError, match=r"^data: .* other operators, .* in the middle of an epoch\. Resume with "):
        resumed.load_state_dict(mixed[0])
    assert not caplog.records
    resumed.load_state_dict(mixed[-1])
    assert "in another order" in caplog.text
    assert_complete(take(resumed), 13, epoch=1)


def test_state_continues_with_the_same_files_in_another_place(
    gray_files: Split, tmp_path: Path, device: torch.device
) -> None:
    folder = tmp_path / gray_files.files[0].parent.name
    folder.mkdir()
    moved = Split(tuple(Path(shutil.copy(file, folder)) for file in gray_files.files), gray_files.targets)
    loader, elsewhere = make(gray_files, device), make(moved, device)
    take(loader, 2)
    elsewhere.load_state_dict(saved(loader.state_dict()))
    loader.load_state_dict(loader.state_dict())
    assert same(take(elsewhere), take(loader))
