"""The examples in Python and YAML of the README and docs/ do what the text says."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from documented import QUICK, blocks, commands, photos_folder
from fakes import make_learner
from omegaconf import OmegaConf
from PIL import Image
from runs import BARE

import augment
import augment.data.sources.registry
import augment.recipe.op
import trainer
import trainer.loop.callback
import trainer.models.base
import trainer.optim.optimizers
import trainer.tasks.loss
import trainer.tasks.metric
import trainer.tasks.registry
from augment.cli.compose import compose, compose_recipe
from augment.params import Size
from augment.pipeline.graph.build import render
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from trainer.callbacks.recorder import Recorder
from trainer.cli.help import explain
from trainer.cli.main import main as train
from trainer.loop.callback import RunDescription, known_callbacks
from trainer.run.config.equality import identity
from trainer.run.config.schema import parse_config
from trainer.tasks.registry import known_tasks, task_named

__all__ = ["photos_folder"]


def module_name(code: str) -> str:
    """Return the file that a block says it is, as "# my_ops.py"; empty if it says nothing."""
    first = code.splitlines()[0]
    return first.split()[1].rstrip(",") if first.startswith("# ") and ".py" in first else ""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that the pages show, importable; what they register is removed again."""
    files = {name: code for _, code in blocks("python") if (name := module_name(code))}
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    known_tasks(), known_callbacks()
    registries: list[dict[Any, Any]] = [
        augment.recipe.op._OPS,
        augment.data.sources.registry._SOURCES,
        trainer.loop.callback._CALLBACKS,
        trainer.models.base._MODELS,
        trainer.optim.optimizers._REGISTERED,
        trainer.tasks.registry._TASKS,
        trainer.tasks.metric.METRICS,
        trainer.tasks.loss.LOSSES,
    ]
    before = [dict(registry) for registry in registries]
    yield
    for registry, names in zip(registries, before, strict=True):
        registry.clear()
        registry.update(names)
    for name in files:
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.usefixtures("modules")
def test_a_tracker_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    server = SimpleNamespace(send_message=lambda mail, from_addr: sent.append(mail))
    monkeypatch.setattr("smtplib.SMTP", lambda host: nullcontext(server))
    config = parse_config(compose(["plugins=[my_trackers]", "callbacks.mail.to=me@example.org"]))
    make_learner(Recorder(), config.callbacks[-1](), run=RunDescription(name="a\nb")).fit()
    ((subject, text),) = ((mail["Subject"], mail.get_content()) for mail in sent)
    assert subject == "a b finished"
    assert re.fullmatch(r"best/epoch: [01]\nbest/val_accuracy: [\d.]+\n", text)
    assert identity(config.resolved)["callbacks"] == identity(parse_config(compose([])).resolved)["callbacks"]


@pytest.mark.usefixtures("modules")
def test_an_op_of_your_own() -> None:
    aug = parse_aug({"plugins": ["my_ops"], "train": {"fade": {"amount_range": [0.25, 0.25]}, "brightness": {}}})
    plan = build_plan(aug, "train")
    assert len(plan.stages) == 1
    draws = Sampler(plan, seed=0).draw(0, 0, 3)
    matrix = augment.recipe.op.OPS["fade"].function(draws["fade"]["amount"])
    assert matrix.shape == (3, 3, 4)
    # A quarter of (100, 0, 0) turns into its gray, 29.9.
    np.testing.assert_allclose(matrix[0] @ [100, 0, 0, 1], [82.475, 7.475, 7.475])
    warps = build_plan(parse_aug({"plugins": ["my_warps"], "val": {"rotate": {}, "polar": {}, "translate": {}}}), "val")
    assert [stage.kind for stage in warps.stages] == ["remap"]


@pytest.mark.usefixtures("modules")
def test_a_callback_of_your_own() -> None:
    import my_callbacks

    values = trainer.loop.callback.parse_callbacks({"stop_early": {"patience": 5}})
    callback: Any = trainer.loop.callback.known_callbacks()["stop_early"](**values["stop_early"])
    assert isinstance(callback, my_callbacks.StopEarly)
    assert callback.patience == 5


@pytest.mark.usefixtures("modules")
def test_a_model_of_your_own() -> None:
    (command,) = [command for command in commands() if "plugins=[my_models]" in command]
    network = parse_config(compose(list(command[1:]))).model.build(10, Size(32, 32))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert [parameter.shape[0] for parameter in network.parameters()] == [64, 64, 64, 64, 10, 10]
    assert "model.kind=tiny  Two convolutions." in explain("all").splitlines()


@pytest.mark.usefixtures("modules")
def test_an_optimizer_of_your_own() -> None:
    (command,) = [command for command in commands() if "plugins=[my_optimizers]" in command]
    layer = torch.nn.Linear(2, 1, bias=False)
    settings = parse_config(compose([*command[1:], "fit.weight_decay=0"])).fit
    optimizer = trainer.optim.optimizers.make_optimizer(settings, layer)
    assert [(group["lr"], group["momentum"]) for group in optimizer.param_groups] == [(0.001, 0.95)]
    layer.weight.grad = torch.tensor([[5.0, -0.1]])
    before = layer.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before - layer.weight.detach(), torch.tensor([[0.001, -0.001]]))
    with pytest.raises(UserError, match=r"^fit.nesterov=True: signs has no nesterov\."):
        trainer.optim.optimizers.make_optimizer(replace(settings, nesterov=True), layer)


@pytest.mark.slow
@pytest.mark.usefixtures("modules", "sample_drawn")
def test_metrics_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = [command for command in commands() if "plugins=[my_metrics]" in command]
    assert train([*command[1:], *QUICK, *BARE]) == 0
    (row,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/metrics.jsonl")]
    assert {"train_brier_score", "val_brier_score", "val_kappa"} < row.keys()


@pytest.mark.usefixtures("modules")
def test_a_loss_of_your_own() -> None:
    (command,) = [command for command in commands() if "plugins=[my_losses]" in command]
    fit = parse_config(compose([*command[1:]])).fit
    loss, _ = task_named("classify").make_losses(fit, torch.nn.Identity(), torch.device("cpu"))
    assert loss(torch.zeros(3, 4), torch.arange(3)).item() == pytest.approx((1 - 0.25**0.5) / 0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("modules")
def test_a_source_and_a_task_of_your_own(
    photos_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in photos_folder.glob("*/*/*.jpg"):
        target = tmp_path / "DIR" / file.parts[-3] / f"{file.parts[-2]}_{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)
    (command,) = [command for command in commands() if "plugins=[my_sources,my_tasks]" in command]
    assert train([*command[1:], *QUICK, *BARE]) == 0
    assert "by_name_focal: 8 + 4 images, 2 classes" in capsys.readouterr().out
    (row,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/metrics.jsonl")]
    assert row["train_loss"] < row["val_loss"]  # the focal loss is below the cross entropy, which validation has


def test_policies_as_shown() -> None:
    (code,) = [code for _, code in blocks("yaml") if "one_of:" in code]
    plan = build_plan(parse_aug(OmegaConf.to_container(OmegaConf.create(code))), "train")
    assert {leaf.op.name for step in plan.tree for leaf in step.leaves()} >= {"gaussian_blur", "shear", "cutmix"}


def test_views_as_shown() -> None:
    (code,) = [code for _, code in blocks("yaml") if "views:" in code]
    plan = build_plan(parse_aug(OmegaConf.to_container(OmegaConf.create(code))), "train")
    assert [own.size.plain for own in plan.per_view] == [224, 224] + [96] * 6
    byol = build_plan(compose_recipe(["+aug=byol"]).aug, "train")
    assert [own.tree for own in plan.per_view[:2]] == [own.tree for own in byol.per_view]


def test_an_experiment_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = [code for _, code in blocks("yaml") if "conf/experiment/mine.yaml" in code]
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text(code)
    composed = compose(["+experiment=mine", "seed=1"])
    assert composed["data"] == {"source": "folder", "root": "photos"}
    assert (composed["model"]["depth"], composed["fit"]["epochs"]) == (18, 60)
    assert list(composed["aug"]["train"]) == list(compose(["+aug=strong"])["aug"]["train"])


def test_stages_as_shown() -> None:
    (code,) = [code for _, code in blocks("yaml") if "stages:" in code]
    given = OmegaConf.to_container(OmegaConf.create(code))
    assert isinstance(given, dict)
    config = parse_config(compose([]) | {"fit": given["fit"]})
    assert [(stage.size.plain, stage.epochs) for stage in config.fit.full_stages(Size(128, 128))] == [
        (96, 12),
        (128, 8),
    ]


def test_a_sweep_of_wandb_as_shown() -> None:
    (code,) = [code for _, code in blocks("yaml") if "# sweep.yaml" in code]
    sweep = yaml.safe_load(code)
    assert sweep["command"][-1] == "${args_no_hyphens}"
    drawn = {name: given.get("value", given.get("values", [given.get("min")])[-1])
             for name, given in sweep["parameters"].items()}  # fmt: skip
    config = parse_config(compose([f"{name}={value}" for name, value in drawn.items()]))
    (rotate,) = [step for step in config.aug.train if step.key == "rotate"]
    assert (config.fit.lr, rotate.p) == (0.001, 0.2)


def test_functions_as_ops(photos: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [code for _, code in blocks("python") if "@numpy_op" in code]
    monkeypatch.setattr(augment.recipe.op, "_OPS", dict(augment.recipe.op._OPS))
    monkeypatch.setattr(augment.recipe.op, "OPS", augment.recipe.op._OPS)
    exec(compile(code, "docs", "exec"), {"__name__": "mine"})
    for steps, expected in (
        ({"roll": {"rows_range": [3, 3]}}, lambda image: np.roll(image, 3, axis=0)),
        ({"mirror_odd": {}}, lambda image: np.stack([row[::-1] if y % 2 else row for y, row in enumerate(image)])),
    ):
        plan = build_plan(parse_aug({"size": 64, "val": steps}), "val")
        images = render(plan, photos, seed=0)
        for image, photo in zip(images, photos, strict=True):
            np.testing.assert_array_equal(image, expected(np.asarray(Image.open(photo))))


@pytest.mark.slow
@pytest.mark.usefixtures("sample_drawn")
def test_the_python_examples_run(photos_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block after the other, page by page; no name comes from elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("augment.data.generated.bands.TRAIN", 4)
    monkeypatch.setattr("augment.data.generated.bands.VAL", 2)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("size: 16\ntrain: {flip: {p: 0.5}}\n")
    for page in ("README.md", "docs/python.md", "docs/channels.md"):
        known: dict[str, Any] = {"__name__": "examples", "pytest": pytest}
        for _, code in (block for block in blocks("python") if block[0] == page):
            code = code.replace('"DIR"', repr(str(photos_folder))).replace("=DIR", f"={photos_folder}")
            code = code.replace('device="cuda"', 'device="cpu"')
            code = code.replace("import lightning\n", "lightning = pytest.importorskip('lightning')\n")
            code = code.replace('"fit.epochs=2"', ", ".join(map(repr, QUICK)))
            code = code.replace("aug.size=96", "aug.size=16").replace('"size": 96', '"size": 16')
            exec(compile(code, page, "exec"), known)
        assert len(known["recipe"].aug.steps("train")) >= 1


@pytest.mark.slow
def test_the_examples_with_targets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a few images; without packages that are not installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("augment.data.generated.annotated.TRAIN", 4)
    monkeypatch.setattr("augment.data.generated.annotated.VAL", 2)
    known: dict[str, Any] = {"__name__": "examples"}
    run = []
    for _, code in (block for block in blocks("python") if block[0] == "docs/targets.md"):
        package = next((name for name in ("segmentation_models_pytorch", "lightning") if f"import {name}" in code), "")
        if not package or find_spec(package):
            exec(compile(code.replace('device="cuda"', 'device="cpu"'), "targets.md", "exec"), known)
            run.append(package)
    assert run.count("") == 3
    assert len(known["batch"].targets[0]["boxes"]) == 1
    if "lightning" in run:
        batch = next(iter(known["loader"])) if "boxes" in str(known["loader"].split.kind) else None
        assert batch is None or known["Detector"](known["detector"]).training_step(batch, 0).isfinite()
