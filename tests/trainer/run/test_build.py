"""What a run is built of."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import draw_classes
from torch import nn

from augment.cli.compose import compose
from augment.pipeline.graph.decoding import Placement
from trainer.loop.ranks import Ranks
from trainer.loop.settings import LoopSettings
from trainer.run import build
from trainer.run.build import make_learner, make_loaders
from trainer.run.config.schema import Config, parse_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A run of a single epoch on two classes of two images."""
    draw_classes(tmp_path, count=2)
    monkeypatch.chdir(tmp_path)
    given = ["aug.size=16", "fit.batch_size=4", "fit.epochs=1", "fit.device=cpu", "fit.threads=1", "~callbacks"]
    return parse_config(compose(["data=folder", f"data.root={tmp_path}", "fit.sync_batchnorm=true", *given]))


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (["fit.loss=mae"], True),
        (["fit.loss_options={delta: 2}"], True),
        (["fit.loss=mae", "callbacks.checkpoint.monitor=val_mae"], False),
    ],
)
def test_another_loss_changes_the_score_of_a_regression(
    given: list[str], changes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run must not compare losses of different kinds to find its best epoch."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8))
    np.save("y.npy", np.arange(4) / 3)
    data = ["data=numpy", "data.train=x.npy", "data.train_targets=y.npy", "data.val_fraction=0.5"]
    small = [*data, "aug.size=16", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1"]

    def validation(overrides: list[str]) -> Mapping[str, Any]:
        config = parse_config(compose([*small, *overrides]))
        with closing(make_loaders(config)) as loaders:
            return make_learner(config, loaders, callbacks=()).run.validation

    monitor = [each for each in given if "monitor" in each]
    assert (validation(given) != validation(monitor)) == changes


@pytest.mark.parametrize("size", [1, 2])
def test_batch_norms_that_ranks_share_are_not_recorded(
    size: int, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a group of processes waits for the graphs that hold one of its exchanges."""
    ranks = Ranks()
    ranks.size = size
    monkeypatch.setattr(build, "current", lambda: ranks)
    monkeypatch.setattr(ranks, "broadcast", lambda value: value)
    loaders = make_loaders(config)
    learner = make_learner(config, loaders, callbacks=())
    loaders.close()
    shared = [module for module in learner.model.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert (bool(shared), learner.settings.graph) == ((False, True) if size == 1 else (True, False))


@pytest.mark.parametrize(
    ("device", "ranks", "given", "train", "val"),
    [
        *(("cpu", 1, 64, 64, 64), ("cuda", 1, 64, 64, 256), ("cuda", 1, 32, 32, 128), ("cuda", 1, 96, 96, 256)),
        *(("cuda", 1, 257, 257, 257), ("cuda", 2, 64, 32, 128)),
    ],
)
def test_validation_on_a_gpu_has_larger_batches(
    device: str, ranks: int, given: int, train: int, val: int, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = Ranks()
    several.size = ranks
    monkeypatch.setattr(build, "current", lambda: several)
    monkeypatch.setattr(several, "broadcast", lambda value: value)
    monkeypatch.setattr(LoopSettings, "torch_device", lambda _: torch.device(device, 0))
    monkeypatch.setattr(build, "place", lambda *_, **__: Placement())
    made = lambda plan, split, order, *_, **__: SimpleNamespace(batch_size=order.batch_size, prepare=lambda: None)  # noqa: E731
    monkeypatch.setattr(build, "Loader", made)
    loaders = make_loaders(replace(config, fit=replace(config.fit, batch_size=given)))
    assert (loaders.train.batch_size, loaders.val.batch_size) == (train, val)  # type: ignore[union-attr]
