"""fit.deterministic makes two runs identical to the bit, on a GPU too, and leaves PyTorch as it was."""

from pathlib import Path

import pytest
import torch
from fakes import assert_same, needs_gpu
from photos import draw_photo
from PIL import Image
from rich.console import Console
from runs import BARE

from augment.cli.compose import compose
from trainer.loop.checkpoint import LAST, FitState, load
from trainer.run.build import session
from trainer.run.config.schema import parse_config
from trainer.run.failures import explain
from trainer.run.train import train


def test_the_setting_holds_for_the_run_alone() -> None:
    for wanted in (False, True):
        with session(parse_config(compose([f"fit.deterministic={wanted}", "fit.device=cpu"]))):
            assert torch.are_deterministic_algorithms_enabled() == wanted
        assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_algorithm_is_named(tmp_path: Path) -> None:
    error = RuntimeError("adaptive_max_pool2d_backward_cuda does not have a deterministic implementation, but you set")
    config = parse_config(compose(["fit.deterministic=true", "fit.device=cpu"]))
    assert str(explain(error, config, tmp_path)).startswith("fit.deterministic=true: adaptive_max_pool2d_backward_cuda")
    config = parse_config(compose(["fit.device=cpu"]))
    assert explain(error, config, tmp_path) is None


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("fit.precision=bf16", "fit.optimizer=adamw"), ("fit.graph=false",)])
def test_two_runs_on_a_gpu_are_identical(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 96), ("val", 8)):
        for number, name in enumerate(("ant", "bee")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for seed in range(count // 2):
                file = tmp_path / "data" / split / name / f"{seed}.jpg"
                Image.fromarray(draw_photo(90, 80, 1000 * number + seed)).save(file)
    small = ["+aug=imagenette", "aug.size=64", "model=timm", "model.name=resnet18", "fit.batch_size=16", "fit.epochs=3"]
    given = ["data=folder", "data.root=data", *small, *BARE, "fit.deterministic=true", *more]
    states = []
    for name in ("one", "two"):
        train(parse_config(compose(given)), tmp_path / name, console=Console(quiet=True))
        states.append(load(tmp_path / name / LAST, FitState))
    assert_same(states[0].model, states[1].model)
    assert_same(states[0].optimizer["state"], states[1].optimizer["state"])
