"""Test runs with adapters: small checkpoints, complete best models, and resuming without the initial weights."""

import shutil
from pathlib import Path

import pytest
import torch
from fakes import assert_same
from runs import BARE, QUIET, draw_classes, small_config
from safetensors.torch import load_file, save_file

from augment.params import Size
from augment.support.errors import UserError
from trainer import load_model
from trainer.callbacks.adapters import BASE
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.models.registry import Timm
from trainer.run.config.checks import check_config, check_resume
from trainer.run.config.schema import Config
from trainer.run.train import train

pytest.importorskip("peft")
BEST_BY_LOSS = ("callbacks.freeze.epochs=1", "callbacks.checkpoint.monitor=train_loss")
NAMES = ("test_resnet", "test_vit")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module", params=["test_resnet", pytest.param("test_vit", marks=pytest.mark.long)])
def work(request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run `whole` of three epochs and a run `part` of one, whose initial weights are gone."""
    root = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(5)
    weights = Timm(name=request.param).build(2, Size(16, 16)).state_dict()
    save_file(weights, root / "weights.safetensors")
    save_file(weights, root / "kept.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name, epochs in (("whole", 3), ("part", 1)):
            config = run_config(
                root, images, request.param, f"fit.epochs={epochs}", "model.weights=weights.safetensors"
            )
            check_config(config)
            train(config, root / name, console=QUIET)
    (root / "weights.safetensors").unlink()
    return root


def run_config(root: Path, images: Path, name: str, *more: str) -> Config:
    """Return the configuration of a run whose average weights and head-first training do not disturb its adapters."""
    lora = ["model=timm", f"model.name={name}", "model.lora.rank=2", "fit.schedule=constant", "fit.lr=0.02"]
    return small_config(
        images, *BARE, *lora, "callbacks.ema.decay=0.5", "callbacks.freeze.epochs=1", *BEST_BY_LOSS, *more
    )


def resumed(work: Path, images: Path) -> Config:
    name = next(name for name in NAMES if work.name.startswith(name))
    config = run_config(work, images, name, "fit.epochs=3", "model.weights=weights.safetensors", "fit.resume=part")
    check_config(config)
    check_resume(config)
    return config


def test_checkpoints_hold_what_is_trained(work: Path) -> None:
    state, base = load(work / "whole" / LAST, FitState), load_file(work / "whole" / BASE)
    assert any("lora_A" in name for name in state.model)
    assert not state.model.keys() & base.keys()
    assert not state.callbacks["EMA"]["average"].keys() & base.keys()
    kept = load_file(work / "kept.safetensors")
    plain = {name.replace(".base_layer.", "."): value for name, value in base.items()}
    assert_same(plain, {name: kept[name] for name in plain})  # also the statistics of norms
    assert len(kept) - len(plain) == 2  # the head


def test_the_best_model_is_complete_and_plain(work: Path, images: Path) -> None:
    best, kept = load(work / "whole" / BEST, BestModel), load_file(work / "kept.safetensors")
    assert best.model.keys() == kept.keys()
    changed = [name for name, value in best.model.items() if not torch.equal(value, kept[name])]
    assert len(changed) > 2
    found = load_model(work / "whole", device="cpu").predict(images / "val")
    for name, (_, share) in ((prediction.file, prediction.classes[0]) for prediction in found):
        assert 0.5 <= share <= 1, name


def test_a_resumed_run_equals_a_whole_one(work: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    train(resumed(work, images), work / "resumed", console=QUIET)
    whole, other = load(work / "whole" / LAST, FitState), load(work / "resumed" / LAST, FitState)
    assert_same(whole.model, other.model)
    assert_same(whole.callbacks["EMA"], other.callbacks["EMA"])
    assert (work / "resumed" / BASE).read_bytes() == (work / "whole" / BASE).read_bytes()


def test_a_base_that_is_gone_or_of_another_run(work: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    base = (work / "part" / BASE).read_bytes()
    (work / "part" / BASE).unlink()
    with pytest.raises(UserError, match=rf"^fit\.resume=part: this folder contains no {BASE}\."):
        resumed(work, images)
    tensors = load_file(work / "whole" / BASE)
    save_file({name: value + 1 for name, value in tensors.items()}, work / "part" / BASE)
    with pytest.raises(UserError, match=f"the {BASE} in that folder belongs to another run"):
        train(resumed(work, images), work / "other", console=QUIET)
    shutil.rmtree(work / "other")
    save_file(dict(list(tensors.items())[1:]), work / "part" / BASE)
    with pytest.raises(UserError, match=r"^fit\.resume=part: the weights of that run do not fit"):
        resumed(work, images)
    (work / "part" / BASE).write_bytes(base)


def test_adapters_need_trained_weights(images: Path, own_folder: Path) -> None:
    with pytest.raises(UserError, match=r"^model\.lora: .* Set model\.pretrained=true or model\.weights=FILE\."):
        check_config(run_config(own_folder, images, "test_vit"))
