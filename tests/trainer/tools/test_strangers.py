"""The run folder of a stranger: whatever it holds, no tool runs its code, and none writes elsewhere."""

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from augment.support.hydra import register_resolver
from augment.tools.export import main as export
from trainer.cli.main import main as train
from trainer.report.command import main as report
from trainer.tools.evaluate import main as evaluate
from trainer.tools.export.command import main as export_model
from trainer.tools.predict import main as predict

EVIL = """\
from pathlib import Path
Path({canary!r}).touch()

def train(**options):
    return []

val = train
"""


@dataclass
class Pickled:
    """Runs a command where it is unpickled."""

    command: str

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@dataclass
class Stranger:
    """A run folder to tamper with, a canary that only its code would make, and an image to predict."""

    run: Path
    canary: Path
    photo: Path

    @property
    def command(self) -> str:
        """A command for a shell that makes the canary."""
        return f"touch {self.canary}"

    def configure(self, **values: Any) -> None:
        """Change values of config.yaml; `a__b` is a.b."""
        file = self.run / "config.yaml"
        config = OmegaConf.create(yaml.safe_load(file.read_text()))
        for key, value in values.items():
            OmegaConf.update(config, key.replace("__", "."), value, merge=False, force_add=True)
        file.write_text(OmegaConf.to_yaml(config))

    def override(self, *tokens: str) -> None:
        """Write overrides.yaml; the images of the run are gone."""
        every = ["data=folder", "data.root=gone", *tokens]
        (self.run / ".hydra" / "overrides.yaml").write_text(json.dumps(every))

    def link(self, name: str) -> None:
        """Let a file of the run lead to a file outside that does not exist yet: the canary."""
        (self.run / name).unlink(missing_ok=True)
        (self.run / name).symlink_to(self.canary)


def own(stranger: Stranger, train: str, **options: str) -> None:
    stranger.configure(data={"source": "own", "train": train, "val": train, "options": options})
    # "data" is not enough on the command line: what is imported is named there, too.
    stranger.override("data=own", f"data.train={train}", f"data.val={train}")


def checkpoints(stranger: Stranger, how: str) -> None:
    evil = Pickled(stranger.command)
    for name in ("best.pt", "last.pt"):
        if how == "compressed":
            with zipfile.ZipFile(stranger.run / name, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("x/data.pkl", bytes(10**7))
        elif how == "old":
            (stranger.run / name).write_bytes(pickle.dumps(evil))
        else:
            torch.save({"format": 1, "model": evil}, stranger.run / name)


def python_tag(stranger: Stranger) -> None:
    text = f"a: !!python/object/apply:os.system ['{stranger.command}']\n"
    (stranger.run / "config.yaml").write_text(text)
    (stranger.run / ".hydra" / "overrides.yaml").write_text(text)


def alias_bomb(stranger: Stranger) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    (stranger.run / "config.yaml").write_text("\n".join(lines))
    (stranger.run / ".hydra" / "overrides.yaml").write_text("\n".join(lines))


def links(stranger: Stranger) -> None:
    for name in ("report.html", "evaluation.json", "evaluation-mine.json", "evaluations.jsonl", "evaluation-mine.png"):
        stranger.link(name)
    stranger.link("export-torch")


def garbage(stranger: Stranger) -> None:
    """What is no code, but of types that nobody expects."""
    (stranger.run / "metrics.jsonl").write_text("[" * 10**5 + "}\n")
    (stranger.run / "steps.jsonl").write_text('{"step": "x"}\n')
    (stranger.run / "summary.json").write_text('{"status": ' + '{"a":' * 10**5)
    (stranger.run / "environment.json").write_text('{"packages": [1], "gpus": {"a": 1}, "git": [1]}')


CONFIGURED = ("evaluate", "evaluate on a folder", "predict", "report", "export", "export a model", "resume")
LOADED = ("evaluate on a folder", "predict", "report", "export a model", "resume")
RESUMED = ("resume",)

# What to do with the folder, and the tools that read it.
WAYS: dict[str, tuple[tuple[str, ...], Callable[[Stranger], object]]] = {
    "a plugin": (CONFIGURED, lambda s: (s.configure(plugins=["evil"]), s.override("plugins=[evil]"))),
    "a plugin of ops": (CONFIGURED, lambda s: (s.configure(aug__plugins=["evil"]), s.override("aug.plugins=[evil]"))),
    "a plugin in a section": (RESUMED, lambda s: s.override("++aug={plugins: [evil]}")),
    "a source": (("evaluate", "report", "resume"), lambda s: own(s, "evil.train")),
    "a system call": (("evaluate", "report", "resume"), lambda s: own(s, "os.system", command=s.command)),
    "a source in a section": (RESUMED, lambda s: s.override("++data={source: own, train: evil.val, val: evil.val}")),
    "an interpolation": (
        ("evaluate", "report", "resume"),
        lambda s: (s.configure(data__root="${canary:}"), s.override("data.root=${canary:}")),
    ),
    "a number": (CONFIGURED, lambda s: (s.configure(seed="${canary:}"), s.override("seed='${canary:}'"))),
    "a folder for downloads": (
        ("evaluate", "report", "resume"),
        lambda s: (s.configure(data={"source": "sample", "dir": str(s.canary)}), s.override(f"data.dir={s.canary}")),
    ),
    "the folder of the resumed run": (
        RESUMED,
        lambda s: s.override(f"hydra.run.dir={s.canary}", f"+hydra={{run: {{dir: {s.canary}}}}}"),
    ),
    "a tracker": (RESUMED, lambda s: s.override("++callbacks.wandb={}")),
    "a download": (
        ("evaluate", "report", "resume"),
        lambda s: (s.configure(data={"source": "imagenette"}), s.override("data=imagenette")),
    ),
    "a huge model": (
        ("evaluate on a folder", "predict", "report", "export a model"),
        lambda s: s.configure(model={"kind": "xresnet50", "width": 16}),
    ),
    "Hydra's callbacks": (
        RESUMED,
        lambda s: s.override(f"+hydra.callbacks.x={{_target_: pathlib.Path.touch, self: {s.canary}}}"),
    ),
    "Hydra's packages": (RESUMED, lambda s: s.override(f"hydra.searchpath=[{s.run}]", "+aug@hydra.run=none")),
    "a flag": (RESUMED, lambda s: s.override(f"--config-dir={s.run}")),
    "YAML tags": (CONFIGURED, python_tag),
    "YAML aliases": (CONFIGURED, alias_bomb),
    **{f"{how} checkpoints": (LOADED, partial(checkpoints, how=how)) for how in ("pickled", "old", "compressed")},
    "links": (("evaluate on a folder", "report", "export a model", "resume"), links),
    "a link as a figure": (("report", "resume"), lambda s: s.link("confusion.png")),
    "garbage": (("report",), garbage),
}


@pytest.fixture
def stranger(finished_run: Path, photos: tuple[Path, ...], tmp_path: Path, monkeypatch: Any) -> Iterator[Stranger]:
    run, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(finished_run, run)
    (run / ".hydra").mkdir()
    for name in ("red", "green"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        shutil.copy(photos[0], tmp_path / "mine" / name)
    here = tmp_path / "here"
    here.mkdir()
    (here / "evil.py").write_text(EVIL.format(canary=str(canary)))
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    register_resolver("canary", lambda: canary.touch() or "x", replace=True)
    made = Stranger(run, canary, photos[0])
    made.override()
    for name in ("metrics.jsonl", "steps.jsonl"):  # charts take a while
        (run / name).write_text("")
    yield made
    OmegaConf.clear_resolver("canary")


def outside(stranger: Stranger) -> set[Path]:
    """Return all files except those of the run, and what is kept of checked images below outputs/."""
    top = stranger.run.parent
    return {path for path in top.rglob("*") if not path.is_relative_to(stranger.run)} - set(
        (top / "here" / "outputs").rglob("*")
    )


def code(tool: Callable[[list[str]], int], *arguments: object) -> int:
    try:
        return tool(list(map(str, arguments)))
    except SystemExit as error:
        return int(error.code or 0)


@pytest.mark.parametrize("way", WAYS)
def test_no_way_in_makes_a_canary(
    way: str, stranger: Stranger, capsys: pytest.CaptureFixture[str], clean_registry: None
) -> None:
    run, mine = stranger.run, stranger.run.parent / "mine"
    tools, tamper = WAYS[way]
    tamper(stranger)
    before = outside(stranger)
    calls: dict[str, tuple[Any, ...]] = {
        "evaluate": (evaluate, run),
        "evaluate on a folder": (evaluate, run, mine),
        "predict": (predict, run, stranger.photo),
        "report": (report, run),
        "export": (export, "--run", run, "--out", run / "exported"),
        "export a model": (export_model, run, "--unchecked"),
        "resume": (train, f"fit.resume={run}"),
    }
    codes = {name: code(*calls[name]) for name in tools}
    assert not stranger.canary.exists(), codes
    assert outside(stranger) - before <= {stranger.run.parent / "here" / "outputs"}
    # The report leaves out what it may not use; the images of the run are gone, so that it cannot be resumed.
    assert set(codes.values()) <= ({0} if tools == ("report",) else {0, 2} if "report" in tools else {2})
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "imports"),
    [([], False), (["plugins=[evil]"], True), (["--trust"], True), (["plugins=[]"], False)],
)
def test_a_plugin_is_imported_if_the_command_line_names_it(
    stranger: Stranger, arguments: list[str], imports: bool, capsys: pytest.CaptureFixture[str], clean_registry: None
) -> None:
    stranger.configure(plugins=["evil"])
    mine = stranger.run.parent / "mine"
    assert code(evaluate, stranger.run, mine, *arguments) == (0 if arguments else 2)
    assert stranger.canary.exists() == imports
    if not arguments:
        assert capsys.readouterr().err == (
            f"error: plugins: [evil] in {stranger.run / 'config.yaml'} is not used, as a run folder does not decide "
            "what is imported. Allowed: plugins=[evil] on the command line, or --trust if you trust the folder and "
            "what it names.\n"
        )


def test_a_source_is_imported_if_the_command_line_names_it(stranger: Stranger, clean_registry: None) -> None:
    own(stranger, "evil.train")
    assert code(evaluate, stranger.run, "data.train=evil.train") == 2
    assert not stranger.canary.exists()
    assert code(evaluate, stranger.run, "data.train=evil.train", "data.val=evil.train") == 2  # it has no items
    assert stranger.canary.exists()


def test_an_environment_variable_is_read_with_trust_only(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.configure(data__root="${oc.env:SECRET_PLACE}")
    monkeypatch.setenv("SECRET_PLACE", "/nowhere/at/all")
    assert code(evaluate, stranger.run) == 2
    told = capsys.readouterr().err
    assert "data.root: ${oc.env:SECRET_PLACE} in " in told
    assert "/nowhere" not in told
    for given in ("--trust", "data.root=${oc.env:SECRET_PLACE}"):
        assert code(evaluate, stranger.run, given) == 2
        assert "/nowhere/at/all" in capsys.readouterr().err


def test_the_report_follows_no_link(stranger: Stranger) -> None:
    secret, page = stranger.run.parent / "secret", stranger.run / "report.html"
    assert code(report, stranger.run) == 0
    secret.write_text("the password")
    (stranger.run / "plan.txt").unlink(missing_ok=True)
    (stranger.run / "plan.txt").symlink_to(secret)
    assert code(report, stranger.run) == 2
    assert "the password" not in page.read_text()
