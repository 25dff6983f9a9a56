"""Standardized regression: learned in standard deviations from the mean, predicted in the data's own units."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import needs_gpu, reject_waiting
from photos import draw_photo
from PIL import Image
from rich.console import Console
from runs import read_metrics
from torch import nn

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.loop.batch_runner import average
from trainer.loop.checkpoint import BEST, LAST, BestModel, FitState, load
from trainer.run.build import make_learner, make_loaders
from trainer.run.config.checks import check_resume
from trainer.run.config.fit import parse_fit
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.tasks.named_losses import huber, mae, mse
from trainer.tasks.registry import task_named
from trainer.tasks.regress import MEAN, STD, mean_and_std, standardize

CPU = torch.device("cpu")
QUICK = ["aug.size=16", "fit.batch_size=6", "fit.device=cpu", "fit.threads=1", "callbacks.progress_bar=null"]
TARGETS = ((1990.0, -3.0, 5.0), (1992.0, -3.0, 7.0), (2000.0, -3.0, 0.0))


def test_mean_and_deviation_by_hand() -> None:
    mean, std = mean_and_std(TARGETS)
    assert mean.tolist() == pytest.approx([1994, -3, 4])
    assert std.tolist() == pytest.approx([np.sqrt(56 / 3), 1, np.sqrt(26 / 3)])
    assert mean_and_std([(0.1,)] * 3)[1].tolist() == [1.0]
    assert mean_and_std([(0.0,), (1e-9,)])[1].tolist() == pytest.approx([5e-10])


def test_the_loss_is_measured_on_standardized_numbers() -> None:
    (mean, std), targets, network = mean_and_std(TARGETS), torch.tensor(TARGETS), nn.Linear(2, 3)
    standardize(network, mean, std)
    raw = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    for loss in (mse, mae, huber):
        expected = loss(raw, (targets - mean) / std).item()
        for found in task_named("regress").make_losses(parse_fit({"loss": loss.__name__}), network, CPU):
            assert found(raw * std + mean, targets).item() == pytest.approx(expected, rel=1e-4)


def test_a_network_predicts_numbers_in_their_own_units() -> None:
    torch.manual_seed(0)
    network, (mean, std) = nn.Linear(2, 3), mean_and_std(TARGETS)
    inputs = torch.randn(4, 2)
    expected = network(inputs) * std + mean
    standardize(network, mean, std)
    for twin in (network, copy.deepcopy(network)):
        assert torch.equal(twin(inputs), expected)
        assert torch.equal(average(twin, inputs[:, None, None], "none", task_named("regress")).flatten(0, 2), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(inputs).dtype == torch.float32
    state, restored = network.state_dict(), nn.Linear(2, 3)
    task_named("regress").restore(restored, state)
    restored.load_state_dict(state)
    assert torch.equal(restored(inputs), expected)
    assert [name for name, _ in network.named_parameters()] == ["weight", "bias"]


@pytest.fixture(scope="module")
def ages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty-eight images, the lighter the older, and a second number that is a thousand times smaller."""
    root = tmp_path_factory.mktemp("ages")
    lines = ["image,age,height"]
    for index in range(48):
        light = index / 48
        Image.fromarray((draw_photo(24, 24, index) * (0.2 + 0.8 * light)).astype(np.uint8)).save(root / f"{index}.png")
        lines.append(f"{index}.png,{90 * light:.1f},{0.01 + 0.05 * light:.4f}")
    (root / "ages.csv").write_text("\n".join(lines) + "\n")
    return root


def configured(ages: Path, *settings: str) -> list[str]:
    files = [f"data.{split}={ages / 'ages.csv'}" for split in ("train", "val")]
    return ["data=filelist", *files, "data.targets=[age,height]", *QUICK, *settings]


def fit(ages: Path, name: str, *settings: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ages)
        lean = ("callbacks.plots=null", "callbacks.report=null")
        train(parse_config(compose(configured(ages, *lean, *settings))), ages / name, console=Console(quiet=True))
    return ages / name


@pytest.fixture(scope="module")
def run(ages: Path) -> Path:
    return fit(ages, "run", "fit.epochs=3", "callbacks.ema.decay=0.5")


def test_the_metrics_of_a_run_are_in_their_own_units(run: Path) -> None:
    best = load(run / BEST, BestModel)
    # Of the train split, in both checkpoints, and not touched by the average of the weights.
    assert best.model[MEAN].tolist() == pytest.approx([44.06, 0.0345], abs=0.01)
    for state in (best.model, load(run / LAST, FitState).model):
        assert state[STD].tolist() == pytest.approx([25.98, 0.01443], rel=0.01)
    errors = best.samples["output"] - best.samples["target"]
    assert best.row["val_mae"] == pytest.approx(errors.abs().mean().item(), rel=1e-4)
    standardized = (errors / best.model[STD]).abs()
    huber = torch.where(standardized < 1, standardized.square() / 2, standardized - 0.5).mean().item()
    assert best.row["val_loss"] == pytest.approx(huber, rel=1e-4)


def test_a_resumed_run_must_standardize_alike(ages: Path) -> None:
    settings = ("fit.limit_batches=2", "fit.standardize=true")
    go_on = (f"fit.resume={fit(ages, 'begun', 'fit.epochs=1', *settings)}", "fit.epochs=2", *settings)
    check(ages, *go_on)
    assert len(read_metrics(fit(ages, "resumed", *go_on))) == 2
    with pytest.raises(UserError, match=r"^fit\.standardize: false, but the resumed run had true\."):
        check(ages, *go_on, "fit.standardize=false")
    with pytest.raises(UserError, match=r"^fit\.loss: mae, but the resumed run had null\. Use the same"):
        check(ages, *go_on, "fit.loss=mae")


def check(ages: Path, *settings: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ages)
        check_resume(parse_config(compose(configured(ages, *settings))))


@needs_gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch.compile, which looks at every tensor
@pytest.mark.parametrize("settings", [[], ["fit.precision=bf16"], ["fit.graph=false"], ["fit.compile=true"]])
def test_on_the_gpu_it_is_recorded_and_never_waits(settings: list[str], ages: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        config = parse_config(compose(configured(ages, "fit.device=cuda", "fit.epochs=2", *settings)))
        learner = make_learner(config, make_loaders(config), callbacks=())
        learner.fit()
        learner.loss_function(learner.output.float(), learner.batch.targets)
        dtype = next(learner.model.parameters()).dtype
        with reject_waiting(), torch.no_grad():
            output = learner.model(learner.batch.images.to(dtype))
            learner.loss_function(output.float(), learner.batch.targets)
        assert output.dtype == torch.float32
        assert output[:, 0].mean() > 1  # ages, not standard deviations
