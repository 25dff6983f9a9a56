"""What the README and docs/ say is true: generated parts, links, commands, and the examples in Python and YAML."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes import make_learner
from omegaconf import OmegaConf
from photos import draw_photo
from PIL import Image

import augment
import augment.data.sources.registry
import augment.recipe.op
import trainer
import trainer.callbacks.registry
import trainer.models.registry
import trainer.tasks.registry
from augment.cli.compose import compose, compose_recipe, split_sweep
from augment.cli.overrides import normalize
from augment.cli.parser import Parser
from augment.cli.tools import find_tools
from augment.pipeline.build import build_pipeline
from augment.recipe.plan import build_plan
from augment.recipe.sampler import Sampler
from augment.recipe.steps import parse_aug
from trainer.callbacks.recorder import Recorder
from trainer.callbacks.registry import known_callbacks
from trainer.cli.main import main as train
from trainer.loop.callback import RunDescription
from trainer.run.config import identity, parse_config
from trainer.sweeps.launchers.registry import parse_launcher
from trainer.sweeps.search import Plan
from trainer.sweeps.start import Request, is_search
from trainer.tasks.registry import known_tasks
from trainer.tools.reference import ROOT, derived_parts, help_text, pages, with_derived_parts

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
every_page = pytest.mark.parametrize("page", TEXTS)


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of all pages, each with its page."""
    return [
        (page, code) for page, text in TEXTS.items() for code in re.findall(rf"```{language}\n(.*?)```", text, re.S)
    ]


def prose(text: str) -> str:
    """Return a page without code blocks, indented commands and tables."""
    lines = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("    ", "|")))


@cache
def commands() -> list[tuple[str, ...]]:
    """Return each `python -m` line of the pages once: package and arguments."""
    lines = re.findall(r"^    (?:.* && )?python -m (.*)$", "\n".join(TEXTS.values()), re.M)
    lines += re.findall(r"used by: python -m (.*)$", "\n".join(TEXTS.values()), re.M)
    return list(dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines))


# --- the pages ---


@every_page
def test_generated_parts_are_up_to_date(page: str) -> None:
    assert with_derived_parts(TEXTS[page]) == TEXTS[page], "run: python -m trainer reference"


def test_every_generated_part_is_on_a_page() -> None:
    for name in derived_parts():
        assert any(f"<!-- {name} -->" in text and f"<!-- /{name} -->" in text for text in TEXTS.values()), name


def test_the_readme_is_short() -> None:
    assert len(prose(TEXTS["README.md"]).split()) <= 900
    assert len(TEXTS["README.md"].splitlines()) <= 170


@every_page
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles], target


@every_page
def test_modules_that_are_named_exist(page: str) -> None:
    for path in re.findall(r"`((?:augment|trainer|tests)/[\w/.]+)`", TEXTS[page]):
        assert (ROOT / path).exists(), path


def test_every_page_is_linked_from_the_readme() -> None:
    for page in TEXTS.keys() - {"README.md"}:
        assert f"]({page})" in TEXTS["README.md"], page


def test_the_test_command_is_the_one_that_ci_runs() -> None:
    assert len(re.findall(r"&& pytest$", TEXTS["README.md"], re.M)) == 1
    assert 'grep -m 1 "&& pytest$" README.md' in (ROOT / ".ci" / "run").read_text()


# --- commands ---


class Parsed(BaseException):
    """Raised where a tool has parsed its command line."""


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_are_valid(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    package, *arguments = command
    tools = find_tools(package)
    if arguments == ["--help"]:
        return
    if package == "trainer" and arguments[0] not in tools:
        tokens = [token for token in arguments if token != "-m" and not token.startswith("fit.resume")]
        request = Request.of(normalize(tokens))
        section = request.section() if "-m" in arguments else {"sweeper": {"_target_": "basic_sweeper"}}
        assert "-m" not in arguments or parse_launcher(section["launcher"]).at_a_time >= 1
        if is_search(section["sweeper"]):
            swept = [*request.params(section["sweeper"]), *request.swept]
            plan = Plan.of(section["sweeper"], request.fixed, swept, Path("outputs/search"), "config", check=False)
            assert plan.search.sampler(0)
            return
        tokens = [*request.fixed, *request.swept]
        assert ("-m" in arguments) == (len(split_sweep(normalize(tokens))) > 1)
        # The first value of each key that is swept stands for the others.
        first = split_sweep(normalize(tokens))[0]
        if not any("plugins" in token for token in tokens):
            assert parse_config(compose(first)).fit.epochs >= 1
        return
    split = Parser.split

    def parse(self: Parser, given: list[str]) -> Any:
        raise Parsed(split(self, given)[1])

    monkeypatch.setattr(Parser, "split", parse)
    with pytest.raises(Parsed) as parsed:
        tools[arguments[0]].run(arguments[1:])
    overrides = [token for token in parsed.value.args[0] if "=" in token]
    assert compose_recipe(overrides).aug.size >= 1


def test_every_tool_is_shown() -> None:
    shown = {command[:2] for command in commands()}
    for package in ("augment", "trainer"):
        assert {(package, tool) for tool in find_tools(package)} - {("trainer", "reference")} <= shown


QUICK = ["fit.device=cpu", "fit.threads=1", "fit.limit_batches=2", "fit.epochs=1", "aug.size=16", "fit.batch_size=4"]
BRIEF = ["--rounds", "1", "--seconds", "0.01"]
# How the first line of each tool is made short.
SHORTENED: dict[tuple[str, str], list[str]] = {
    ("augment", "bench"): [
        "data=folder",
        "data.root=DIR",
        *BRIEF,
        "--rows",
        "fused",
        "--batch-size",
        "4",
        "--threads",
        "1",
    ],
    ("augment", "preview"): ["data=folder", "data.root=DIR", "aug.size=32"],
    ("trainer", "dashboard"): ["RUN_FOLDER"],
    ("trainer", "bench"): [*BRIEF, *QUICK, "data=folder", "data.root=DIR"],
    ("trainer", "find_lr"): [*QUICK, "data=folder", "data.root=DIR"],
}


def tool_lines() -> list[tuple[str, ...]]:
    """Return the first line of each tool."""
    first: dict[tuple[str, ...], tuple[str, ...]] = {}
    for command in commands():
        if command[1] in find_tools(command[0]):
            first.setdefault((*command[:2], "--sources" * ("--sources" in command)), command)
    return list(first.values())


@pytest.fixture(scope="module")
def photos_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DIR/{train,val}/<class>/*, two classes."""
    root = tmp_path_factory.mktemp("photos")
    for split, count in (("train", 8), ("val", 4)):
        for seed in range(count):
            folder = root / split / ("cat", "dog")[seed % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_photo(48, 40, len(split) * 10 + seed)).save(folder / f"{seed}.jpg")
    return root


@pytest.fixture(scope="module")
def run_folder(photos_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on these photos."""
    folder = tmp_path_factory.mktemp("outputs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        trainer.train("data=folder", f"data.root={photos_folder}", *QUICK, folder=folder)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("no_settling")
@pytest.mark.parametrize("command", tool_lines(), ids=" ".join)
def test_the_first_line_of_each_tool_runs(
    command: tuple[str, ...],
    photos_folder: Path,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "photos").symlink_to(photos_folder / "val" / "cat")
    package, tool, *arguments = command
    if "--sources" in arguments:
        arguments += [*BRIEF, "--batch-size", "4", "--threads", "1", "--only", "filelist"]
    else:
        arguments += SHORTENED.get((package, tool), [])
    known = {"DIR": str(photos_folder), "RUN_FOLDER": str(run), "OUT": str(tmp_path / "out")}
    arguments = [re.sub(r"\b(DIR|RUN_FOLDER|OUT)\b", lambda m: known[m.group()], token) for token in arguments]
    arguments = [str(run) if token.split("/")[0] == "outputs" else token for token in arguments]
    if (package, tool) == ("trainer", "sweep"):
        (tmp_path / "sweep.yaml").write_text("command: []\n")
        (run / "job.json").write_text('{"order": 0, "overrides": []}')
        arguments = [str(tmp_path) if token == str(run) else token for token in arguments]
    if (package, tool) == ("augment", "convert"):
        arguments = [token for token in arguments if token not in ("--size", "256")]
    assert find_tools(package)[tool].run(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_main_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos_folder: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = [c for c in commands() if c == ("trainer", "+aug=imagenette", "data=folder", "data.root=DIR")]
    arguments = [token.replace("DIR", str(photos_folder)) for token in command[1:]]
    assert train([*arguments, *QUICK]) == 0
    assert list(tmp_path.glob("outputs/*/*/report.html"))


# --- examples ---


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
    registries: list[dict[str, Any]] = [
        augment.recipe.op._OPS,
        augment.data.sources.registry._SOURCES,
        trainer.callbacks.registry._CALLBACKS,
        trainer.models.registry._MODELS,
        trainer.tasks.registry._TASKS,
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
    assert identity(config)["callbacks"] == identity(parse_config(compose([])))["callbacks"]


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


@pytest.mark.usefixtures("modules")
def test_a_callback_of_your_own() -> None:
    import my_callbacks

    (make,) = trainer.callbacks.registry.parse_callbacks({"stop_early": {"patience": 5}})
    callback = make()
    assert isinstance(callback, my_callbacks.StopEarly)
    assert callback.patience == 5


@pytest.mark.usefixtures("modules")
def test_a_model_of_your_own() -> None:
    (command,) = [command for command in commands() if "plugins=[my_models]" in command]
    network = parse_config(compose(list(command[1:]))).model.build(10, 32)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert [parameter.shape[0] for parameter in network.parameters()] == [64, 64, 64, 64, 10, 10]
    assert "model.kind=tiny  Two convolutions." in help_text([]).splitlines()


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
    assert train([*command[1:], *QUICK]) == 0
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
    assert [own.size for own in plan.per_view] == [224, 224] + [96] * 6
    byol = build_plan(compose_recipe(["+aug=byol"]).aug, "train")
    assert [own.tree for own in plan.per_view[:2]] == [own.tree for own in byol.per_view]


def test_stages_as_shown() -> None:
    (code,) = [code for _, code in blocks("yaml") if "stages:" in code]
    given = OmegaConf.to_container(OmegaConf.create(code))
    assert isinstance(given, dict)
    config = parse_config(compose([]) | {"fit": given["fit"]})
    assert [(stage.size, stage.epochs) for stage in config.fit.full_stages(128)] == [(96, 12), (128, 8)]


def test_an_agent_of_wandb_runs_the_sweep_as_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from wandb import wandb_agent

    (code,) = [code for _, code in blocks("yaml") if "# sweep.yaml" in code]
    sweep = yaml.safe_load(code)
    drawn = {
        name: {"value": given.get("value", given.get("values", [given.get("min")])[-1])}
        for name, given in sweep["parameters"].items()
    }
    started: list[list[str]] = []
    monkeypatch.setattr(wandb_agent, "AgentProcess", lambda command, **others: started.append(command))
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, "")  # which the agent sets
    monkeypatch.chdir(tmp_path)
    agent = object.__new__(wandb_agent.Agent)
    vars(agent).update(_sweep_command=sweep["command"], _function=None, _in_jupyter=False, _run_processes={})
    vars(agent).update(_forward_signals=False)
    with suppress(AttributeError):  # of the process that is none
        agent._command_run({"run_id": "abc", "program": sweep["program"], "args": drawn})
    (command,) = started
    assert command[:4] == ["/usr/bin/env", "python", "-m", "trainer"]
    config = parse_config(compose(command[4:]))
    (rotate,) = [step for step in config.aug.train if step.key == "rotate"]
    assert (config.fit.lr, rotate.p) == (0.001, 0.2)
    assert config.resolved["aug"]["train"]["rotate"]["angle_range"] == [-7, 7]
    assert list(config.resolved["callbacks"])[-1] == "wandb"


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
        pipeline = build_pipeline(plan, photos, batch_size=len(photos), seed=0, raw=True)
        images = np.array(pipeline.run()[0].as_tensor())
        for image, photo in zip(images, photos, strict=True):
            np.testing.assert_array_equal(image, expected(np.asarray(Image.open(photo))))


@pytest.mark.slow
@pytest.mark.usefixtures("sample_drawn")
def test_the_python_examples_run(photos_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block after the other, page by page, with names that a reader has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("size: 16\ntrain: {flip: {p: 0.5}}\n")
    jpeg = next((photos_folder / "train" / "cat").iterdir()).read_bytes()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(2))
    names: dict[str, Any] = {
        "pytest": pytest,
        "model": model,
        "criterion": torch.nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]),
        "epochs": 1,
        "targets": torch.tensor([0, 1]),
        "torch": torch,
        "photos": np.zeros((2, 40, 50, 3), np.uint8),
        "first": np.zeros((40, 50, 3), np.uint8),
        "second": np.zeros((30, 20, 3), np.uint8),
        "jpeg_bytes": jpeg,
        "png_bytes": jpeg,
    }
    for page in ("README.md", "docs/python.md"):
        known: dict[str, Any] = {"__name__": "examples", **names}
        for _, code in (block for block in blocks("python") if block[0] == page):
            code = code.replace('"DIR"', repr(str(photos_folder))).replace('device="cuda"', 'device="cpu"')
            code = code.replace("import lightning\n", "lightning = pytest.importorskip('lightning')\n")
            code = code.replace('"fit.epochs=2"', ", ".join(map(repr, QUICK)))
            code = code.replace("aug.size=96", "aug.size=16").replace('"size": 96', '"size": 16')
            known["targets"] = names["targets"]  # loops use the name, too
            exec(compile(code, page, "exec"), known)
        assert len(known["recipe"].aug.steps("train")) >= 1
