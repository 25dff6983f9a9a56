"""Stages, resumed to the bit, and which of them may change."""

from typing import Any

import pytest
from passes import saved
from stages import SIZES, STAGES, config_of, same, staged, take

from augment.data.dataset import Split
from augment.pipeline.graph import Placement
from augment.support.errors import UserError
from trainer.loop.resizing import StagedLoader
from trainer.run.build import make_train_loader
from trainer.run.config import Config


@pytest.mark.parametrize(("epoch", "done"), [(0, 1), (1, 2), (2, 0), (2, 2), (3, 1), (4, 1)])
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


def test_all_stages_go_back_to_what_a_trial_of_decoders_chose(data: Split) -> None:
    config = config_of()
    chosen, other = (Placement("gpu", decode=decode, auto=True) for decode in ("cpu", "mixed"))
    saved_one, resumed = (make_train_loader(config, data, placement) for placement in (chosen, other))
    assert isinstance(resumed, StagedLoader)
    resumed.load_state_dict(saved_one.state_dict())
    assert [loader.placement.decode for loader in resumed._loaders] == ["cpu"] * 3


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
    with pytest.raises(UserError, match=r"^fit\.stages: .* Allowed: the same"):
        make_train_loader(other, data).check_state(state)


def test_a_run_without_stages_does_not_resume_with_some(data: Split) -> None:
    state = make_train_loader(config_of({}), data).state_dict()
    with pytest.raises(UserError, match=r"^fit\.stages: "):
        staged(config_of(), data).check_state(state)
