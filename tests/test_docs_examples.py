"""The examples in Python and YAML of the README and docs/ do what the text says."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from documented import FENCED, QUICK, TEXTS, blocks, commands, photos_folder
from fakes import make_learner
from generated import ROOT
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
from augment.data.sources import load_dataset
from augment.params import Size
from augment.pipeline.graph.build import render
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from trainer.callbacks.recorder import Recorder
from trainer.cli.help import explain
from trainer.cli.main import main as train
from trainer.loop.callback import CancelFit, RunDescription, known_callbacks
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


def run_page(page: str, *replaced: tuple[str, str]) -> dict[str, Any]:
    """Run the Python blocks of a page one after the other, and return the names that they define.

    Blocks that import a package that is not installed are left out.
    """
    known: dict[str, Any] = {"__name__": "examples"}
    for code in (code for shown, code in blocks("python") if shown == page):
        imported = re.findall(r"^(?:import|from) (\w+)", code, re.M)
        if missing := [name for name in imported if not find_spec(name)]:
            assert missing == ["lightning"]
            continue
        for old, new in (*replaced, ('device="cuda"', 'device="cpu"')):
            code = code.replace(old, new)
        exec(compile(code, page, "exec"), known)
    return known


ONE_STEP = {"max_steps": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
of_lightning = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec:FutureWarning", "ignore:.*does not have many workers"
)


@pytest.mark.slow
@of_lightning
@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/channels.md"])
def test_the_python_examples_run(
    page: str, photos_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block after the other; no name comes from elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("augment.data.generated.bands.TRAIN", 4)
    monkeypatch.setattr("augment.data.generated.bands.VAL", 2)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("size: 16\ntrain: {flip: {p: 0.5}}\n")
    known = run_page(
        page,
        ('"DIR"', repr(str(photos_folder))),
        ("=DIR", f"={photos_folder}"),
        ('"fit.epochs=2"', ", ".join(map(repr, QUICK))),
        ("aug.size=96", "aug.size=16"),
        ('"size": 96', '"size": 16'),
    )
    assert len(known["recipe"].aug.steps("train")) >= 1
    if "Classifier" in known:
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 160 * 160, 2))
        samples = [(torch.zeros(40, 50, 3, dtype=torch.uint8), target) for target in range(2)]
        (fit := known["lightning"].Trainer(**ONE_STEP)).fit(
            known["Classifier"](network, known["recipe"]), torch.utils.data.DataLoader(samples, 2)
        )
        assert fit.global_step == 1


@pytest.mark.slow
@of_lightning
def test_the_examples_with_targets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a few images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("augment.data.generated.annotated.TRAIN", 4)
    monkeypatch.setattr("augment.data.generated.annotated.VAL", 2)
    known = run_page("docs/targets.md", ("max_epochs=10", f"**{ONE_STEP}"))
    assert len(known["batch"].targets[0]["boxes"]) == 1


@pytest.mark.usefixtures("modules")
def test_own_code_that_lists_images(photos_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(photos_folder)
    (command,) = [command for command in commands() if "data.train=my_data.train" in command]
    dataset = load_dataset(parse_config(compose([*command[1:]])).data)
    assert (len(dataset.train), len(dataset.val), dataset.classes) == (8, 4, ("cat", "dog"))


def test_a_list_and_corrections_as_shown(photos_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed, corrections = (code for _, code in blocks("") if code.startswith("path,label"))
    files = sorted({line.split(",")[0] for line in (*listed.splitlines()[1:], *corrections.splitlines()[1:])})
    for file, photo in zip(
        (*files, "photos/val/cat/1.jpg", "photos/val/dog/2.jpg"), cycle(photos_folder.glob("*/*/*.jpg"))
    ):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).symlink_to(photo)
    for name in ("train.csv", "val.csv"):
        Path(name).write_text(listed)
    Path("corrections.csv").write_text(corrections)
    (command,) = [c for c in commands() if c[2:] == ("data=filelist", "data.train=train.csv", "data.val=val.csv")]
    assert load_dataset(parse_config(compose([*command[1:]])).data).train.targets == (0, 1)
    given = ["data=folder", "data.root=photos", "data.labels=corrections.csv"]
    train = load_dataset(parse_config(compose(given)).data).train
    assert [(Path(str(file)).stem, target) for file, target in zip(train.files, train.targets, strict=True)] == [
        ("17", 1), ("5", 1),
    ]  # fmt: skip


def test_a_callback_for_several_ranks_as_shown() -> None:
    (code,) = [code for page, code in blocks("python") if page == "docs/gpus.md"]
    names: dict[str, Any] = {"time": lambda: 2, "CancelFit": CancelFit}
    exec(code, names)
    asked: list[tuple[str, bool]] = []
    ranks = SimpleNamespace(agree=lambda key, value: asked.append((key, value)) or value)
    for training, deadline in ((False, 1), (True, 3)):
        names["after_batch"](SimpleNamespace(deadline=deadline), SimpleNamespace(training=training, ranks=ranks))
    with pytest.raises(CancelFit):
        names["after_batch"](SimpleNamespace(deadline=1), SimpleNamespace(training=True, ranks=ranks))
    assert asked == [("late", False), ("late", True)]


WHOLE_PAGES = {
    "README.md": "test_the_python_examples_run",
    "docs/python.md": "test_the_python_examples_run",
    "docs/channels.md": "test_the_python_examples_run",
    "docs/targets.md": "test_the_examples_with_targets_run",
    "docs/training_step.md": "test_the_examples_of_the_page_run",
}
# Other blocks, by text in them: the test that runs them, or why none does.
OTHER_BLOCKS = {
    "# my_ops.py": "test_an_op_of_your_own",
    "# my_warps.py": "test_an_op_of_your_own",
    "# my_callbacks.py": "test_a_callback_of_your_own",
    "# my_trackers.py": "test_a_tracker_of_your_own",
    "# my_sources.py": "test_a_source_and_a_task_of_your_own",
    "# my_tasks.py": "test_a_source_and_a_task_of_your_own",
    "# my_zips.py": "test_a_new_source_is_one_module_of_a_few_lines",
    "# my_models.py": "test_a_model_of_your_own",
    "# my_optimizers.py": "test_an_optimizer_of_your_own",
    "# my_metrics.py": "test_metrics_of_your_own",
    "# my_losses.py": "test_a_loss_of_your_own",
    "# my_data.py": "test_own_code_that_lists_images",
    "@numpy_op": "test_functions_as_ops",
    "def after_batch(self, learner):": "test_a_callback_for_several_ranks_as_shown",
    'load_model("RUN").predict("DIR", threshold=0.3)': "test_objects_in_python_as_shown",
    'torch.export.load("model.pt2").module()': "test_other_runtimes_as_shown",
    "openvino.compile_model": "test_other_runtimes_as_shown",
    "coremltools.convert": "test_core_ml_as_shown",
    "# conf/aug/imagenette.yaml": "test_generated_parts_are_up_to_date",
    "kind: TrainJob": "test_the_train_job_is_valid",
    "resources:\n  accelerators": "test_the_skypilot_task_is_valid",
    "one_of:": "test_policies_as_shown",
    "views:": "test_views_as_shown",
    "# conf/experiment/mine.yaml": "test_an_experiment_of_your_own",
    "stages:": "test_stages_as_shown",
    "# sweep.yaml": "test_a_sweep_of_wandb_as_shown",
    "path,label": "test_a_list_and_corrections_as_shown",
    "config.yaml          resolved": "test_the_page_lists_the_files_of_a_run",
    "train: 128 x 128 px": "test_generated_parts_are_up_to_date",
    "for each epoch:": "test_generated_parts_are_up_to_date",
    "@software": "test_the_citation_has_this_version",
    # Not run:
    "config.pbtxt": "needs a Triton server, as the page states",
    "cat/  001.jpg": "a layout of folders",
    " -> Learner": "a diagram",
    "q_k = ": "a formula",
    "seconds\n": "the output of a run",
    "Accuracy without corruption": "the output of a run",
}


def test_every_block_is_run() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for page, text in TEXTS.items():
        for _, language, code in FENCED.findall(text):
            if language == "python" and page in WHOLE_PAGES:
                found = [WHOLE_PAGES[page]]
            else:
                found = [test for start, test in OTHER_BLOCKS.items() if start in code]
            assert found, f"{page}: no test runs this block:\n{code}"
            assert all(" " in test or f"def {test}(" in tests for test in found), found


def test_the_citation_has_this_version() -> None:
    ((_, entry),) = blocks("bibtex")
    assert f"version = {{{trainer.__version__}}}" in entry
