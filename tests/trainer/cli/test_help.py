"""Reference texts: nothing that is declared may be missing from them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from augment.cli.config_files import CONF, config_files, group_names
from augment.cli.help_text import example
from augment.cli.tools import find_tools
from augment.data.sources import SOURCES
from augment.params import Param, Range, settings
from augment.recipe.op import OPS
from augment.recipe.steps import Aug, parse_aug
from trainer.cli.help import _SYNONYMS, answer, explain, overview, sections, topics
from trainer.cli.main import main
from trainer.loop.callback import known_callbacks
from trainer.models.registry import MODELS
from trainer.run.config.fit import Fit
from trainer.run.config.schema import inner_keys

HELP = explain("all")
LINES = [line.strip() for line in HELP.splitlines()]


def assert_row(name: str, param: Param[Any]) -> None:
    """There is a line that begins with the name and says what it does, what is allowed, and the default."""
    default = "[]" if param.default == () else param.show(param.default)
    end = "required" if param.required else f"default {default}"
    assert f"{name}: {param.doc} ({param.allowed()}; {end})" in LINES


def test_the_overview_fits_on_a_screen(own_folder: Path) -> None:
    (own_folder / "conf" / "aug").mkdir(parents=True)
    for name in ("one", "two"):
        (own_folder / "conf" / "aug" / f"{name}_of_my_own.yaml").write_text("size: 8\n")
    lines = overview().splitlines()
    assert 24 <= len(lines) <= 44
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[5 : 5 + len(topics())]] == list(topics())
    assert {name for name in find_tools("trainer") if f"\n  {name} " in overview()} == set(find_tools("trainer"))
    assert "your own files: aug=one_of_my_own, aug=two_of_my_own" in lines


def test_every_topic_key_file_and_op_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(sections())
    monkeypatch.setattr("trainer.cli.help.sections", lambda: iter(found))  # which are worked out for each key
    for topic in topics():
        assert explain(topic).strip()
    for section in sections():
        assert section.head in explain(section.topic)
        for name in section.params:
            key = f"{section.prefix}.{name}".lstrip(".")
            assert f"  {key}: " in explain(key), key
            assert section.head in explain(key), key
    for group in group_names():
        for name, file in config_files(group).items():
            assert f"  {name}" in explain(group)
            assert all(line.strip() in explain(f"+{group}={name}") for line in file.read_text().splitlines())
    for op in OPS.values():
        for word in (op.name, f"aug.train.{op.name}", f"aug.val.{op.name}.p"):
            assert explain(word).startswith(f"{op.name} ({op.kind}): {op.doc}\n")
        assert {line.split(":")[0].strip() for line in explain(op.name).splitlines()} >= {*op.params}


def test_the_example_of_an_op_is_a_step() -> None:
    for op in OPS.values():
        train = yaml.safe_load(f"{{{example(op)}}}")
        assert f"  {example(op)}\n" in explain(op.name)
        (step,) = parse_aug({"train": train}).train
        for name, param in op.own_params.items():
            default = pytest.approx(param.default, rel=1e-3) if isinstance(param, Range) else param.default
            assert step.params[name] == default


@pytest.mark.parametrize(
    ("word", "meant"),
    [("lr", "fit.lr"), ("hydra/launcher", "hydra.launcher"), ("RandomHorizontalFlip", "flip"), ("aug.val", "ops")],
)
def test_what_is_meant_is_explained(word: str, meant: str) -> None:
    assert explain(word) == explain(meant)


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("focal", "fit.loss, fit.loss_options"),
        ("monitor", "fit.plateau_patience, callbacks.checkpoint.monitor, callbacks.early_stopping.monitor"),
    ],
)
def test_a_word_that_is_no_topic_explains_the_keys_that_mention_it(
    word: str, keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", word]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {*keys.split(", ")} <= {line.strip().partition(":")[0] for line in lines}


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (["threshold"], ["python -m trainer predict --threshold", "docs/multilabel.md"]),
        (["resume"], ["fit.resume", "docs/resume.md"]),
        (["lora"], ["model.lora", "docs/finetune.md"]),
        (["test", "split"], ["data.test_fraction", "python -m trainer compare --split", "docs/splits.md"]),
        (["overfitting"], ["docs/quickstart.md"]),
        (["quantize"], ["python -m trainer export --variants"]),
        (["quantization"], ["python -m trainer export --calibrate"]),
        (["peft"], ["model.lora"]),
        (["distillation"], ["fit.teacher"]),
        (["hub"], ["python -m trainer push"]),
        (["latest"], ["RUN             folder of a run, or last (the latest run), best or SWEEP:best"]),
    ],
)
def test_words_find_settings_options_and_pages(
    words: list[str], mentions: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", *words]) == 0
    lines = [line.strip().partition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {*mentions} <= {*lines}


def test_terms_of_the_glossary_are_explained() -> None:
    assert answer(["stage"]).startswith("stage: in a plan: steps that run as one operation. In `fit.stages`: a")
    assert answer(["epoch"]).startswith("epoch: one pass over the training set. With `fit.steps`, the last epoch may")


def test_words_of_other_programs_find_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "OOM"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"fit.batch_size", "aug.cache", "model.checkpointing"} <= {line.strip().partition(":")[0] for line in lines}
    assert all(answer([word]) for word in _SYNONYMS)
    assert not _SYNONYMS.keys() & {*topics(), *OPS, *inner_keys(), *find_tools("trainer"), *find_tools("augment")}


def test_words_that_nothing_contains_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nonsense"], ["resume", "nonsense"]):
        with pytest.raises(SystemExit, match="2"):
            main(["--help", *words])
        assert "--help nonsense: unknown topic" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help", "preview"], ["--help", "evaluate"]])
def test_a_tool_is_a_topic(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert f" {arguments[1]} " in capsys.readouterr().out.partition("\n")[0]


def test_long_lines_are_wrapped_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["--help", "fit"]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["--help", "fit"]) == 0
    wrapped = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 70 >= max(map(len, wrapped.splitlines()))
    assert wrapped.split() == whole.split()


def test_every_setting_and_every_name_is_in_the_help() -> None:
    registries: dict[str, Mapping[str, type]] = {"data": SOURCES, "model": MODELS, "callbacks": known_callbacks()}
    sections: list[tuple[str, type]] = [("fit", Fit), ("aug", Aug)]
    for title, registry in registries.items():
        for name, cls in registry.items():
            sections.append((f"callbacks.{name}" if title == "callbacks" else title, cls))
            first = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
            file = CONF / title / f"{name}.yaml"
            assert f"{f'{title}={name}' if file.exists() else f'callbacks.{name}'}  {first}" in LINES
    for prefix, cls in sections:
        for name, param in settings(cls).items():
            assert_row(f"{prefix}.{name}", param)
    for name in ("seed", "plugins"):
        assert [line for line in LINES if line.startswith(f"{name}: ") and "; default " in line]


def test_every_experiment_is_in_the_help() -> None:
    files = list((CONF / "experiment").glob("*.yaml"))
    assert files
    for file in files:
        mark, comment, *_ = file.read_text().splitlines()
        assert mark == "# @package _global_"
        said = comment.removeprefix("# ").partition(". ")[0]
        assert any(re.match(rf"{file.stem}\s+{re.escape(said)}", line) for line in LINES)


# --- the command line ---


@pytest.mark.usefixtures("own_folder")
def test_hydra_shows_what_it_composes(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags may stand anywhere, and nothing is written."""
    assert main(["fit.epochs=3", "-c", "job", "+aug=none"]) == 0
    assert "fit:\n  epochs: 3\n" in capsys.readouterr().out
    assert not Path("outputs").exists()


@pytest.mark.usefixtures("clean_registry", "own_folder")
def test_the_help_explains_what_plugins_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An op of one's own is in --help, as any other."""
    text = "from augment.recipe.op import numpy_op\n@numpy_op()\ndef stays(image):\n    'Nothing.'\n    return image\n"
    (tmp_path / "ops_for_help.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["aug.plugins=[ops_for_help]", "--help", "stays"]) == 0
    page = capsys.readouterr().out
    assert "stays (local): Nothing." in page
    assert "aug.train.stays.p=0.5 aug.plugins=[ops_for_help]\n" in page
    with pytest.raises(SystemExit):
        main(["--help", "aug.plugins=ops_for_help"])
    assert "Use a list of names, such as aug.plugins=[ops_for_help]" in capsys.readouterr().err
