"""Folders of strangers: 60 hostile runs, sweeps and searches; no tool runs their code, hangs or writes elsewhere."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from runs import draw_classes

from augment.cli.conf import CONF
from trainer.cli.main import main

pytestmark = pytest.mark.faults

LIMIT = 120  # seconds of all tools on a folder

# What code in a folder would do, and where links in it lead.
EVIL = "import pathlib\npathlib.Path({canary!r}).write_text('code ran')\ntrain = val = lambda **options: []\n"
SECRET = "precious\n"

ESCAPE = "\033]0;pwned\007\033[31m"
DEEP = '{"a":' * 10**5
DIGITS = "9" * 5000
ARGUMENTS = [
    *("data=folder", "aug.size=16", "fit.batch_size=2", "fit.epochs=1", "fit.device=cpu", "fit.threads=1"),
    *("callbacks.plots=null", "callbacks.report=null"),
]

Tamper = Callable[[Path, Path], object]  # with the folder of a run or job, and with one outside

RUN_FILES = [
    *("config.yaml", "summary.json", "metrics.jsonl", "steps.jsonl", "left_out.json", "environment.json", "plan.txt"),
    *("last.pt", "best.pt", "trainer.log", ".lock", ".hydra/overrides.yaml", ".hydra", "run.json", "mistakes.json"),
]
JOB_FILES = ["job.json", "../sweep.yaml", "../sweep.md", "../sweep.json"]
SEARCH_FILES = ["../study.journal", "../.study.lock", "../search.md", "../search.json"]

TOP = "../sweep.yaml"


def away(file: Path) -> Path:
    """Remove what has a name, and return the name."""
    shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
    return file


def link(name: str) -> Tamper:
    def tamper(run: Path, outside: Path) -> None:
        folder = name in (".hydra", ".")
        away(run / name).symlink_to(outside / ("folder" if folder else "bashrc"), target_is_directory=folder)

    return tamper


def pipe(name: str) -> Tamper:
    return lambda run, _: os.mkfifo(away(run / name))


def text(name: str, content: str) -> Tamper:
    return lambda run, _: (run / name).write_text(content)


def configure(**values: Any) -> Tamper:
    """Change config.yaml, overrides.yaml and job.json; `a__b` is a.b."""

    def tamper(run: Path, outside: Path) -> None:
        given = {key.replace("__", "."): value for key, value in values.items()}
        if (run / "config.yaml").exists():
            config = OmegaConf.create(yaml.safe_load((run / "config.yaml").read_text()))
            for key, value in given.items():
                OmegaConf.update(config, key, value, merge=False, force_add=True)
            (run / "config.yaml").write_text(OmegaConf.to_yaml(config))
        override(*(f"++{key}={json.dumps(value).replace(': ', ':')}" for key, value in given.items()))(run, outside)

    return tamper


def override(*tokens: str) -> Tamper:
    """Add overrides to those of a run, or to those of a job and of its sweep."""

    def tamper(run: Path, outside: Path) -> None:
        every = [token.replace("OUTSIDE", str(outside)) for token in tokens]
        replaced = ("data=", "++data.") if any(token.lstrip("+").startswith("data") for token in every) else ("-",)
        hydra = [token for token in every if "hydra" in token]

        def others(before: list[str]) -> list[str]:
            return [token for token in before if not token.startswith(replaced)]

        if (file := run / ".hydra" / "overrides.yaml").exists():
            file.write_text(OmegaConf.to_yaml([*others(yaml.safe_load(file.read_text())), *every]))
        if (file := run / "job.json").exists():
            job = json.loads(file.read_text())
            job["overrides"] = [*others(job["overrides"]), *(token for token in every if token not in hydra)]
            file.write_text(json.dumps(job))
        if (file := run / TOP).exists():
            sweep = yaml.safe_load(file.read_text())
            file.write_text(yaml.safe_dump(sweep | {"command": [*others(sweep["command"]), *every]}))

    return tamper


def ask(*tokens: str) -> Tamper:
    """Add overrides to those of a sweep alone."""

    def tamper(run: Path, _: Path) -> None:
        sweep = yaml.safe_load((run / TOP).read_text())
        (run / TOP).write_text(yaml.safe_dump(sweep | {"command": [*sweep["command"], *tokens]}))

    return tamper


def elsewhere(run: Path, outside: Path) -> None:
    """Let jobs start from a file of the stranger's."""
    name = os.path.relpath(outside / "evil", CONF)
    (run / TOP).write_text(yaml.safe_dump({"command": ["seed=0"], "config_name": name}))
    (run / "job.json").write_text(json.dumps({"order": 0, "overrides": ["++seed=0"]}))


def state(name: str, change: Callable[[dict[str, Any]], object]) -> Tamper:
    """Change what a checkpoint holds."""

    def tamper(run: Path, _: Path) -> None:
        if (run / name).exists():
            values = torch.load(run / name, weights_only=True)
            change(values)
            torch.save(values, run / name)

    return tamper


def momentum(values: dict[str, Any], tensor: torch.Tensor) -> None:
    for inner in values["optimizer"]["state"].values():
        inner.update(dict.fromkeys(inner, tensor))


CODE: dict[str, Tamper] = {
    "a plugin": configure(plugins=["evil"]),
    "a plugin of ops": configure(aug__plugins=["evil"]),
    "a system call": override("data.source=own", "++data.train=os.system", "++data.val=os.system",
                              "++data.options={command:'touch OUTSIDE/canary'}"),
    "a function": override("++data={source:own,train:evil.train,val:evil.val}"),
    "Hydra's callbacks": override("+hydra.callbacks.x={_target_: pathlib.Path.touch, self: OUTSIDE/canary}"),
    "a search path": override("hydra.searchpath=[OUTSIDE]", "+evil=evil"),
    "a Python tag": lambda run, _: [(run / name).write_text("a: !!python/object/apply:os.system ['touch canary']\n")
                                    for name in ("config.yaml", ".hydra/overrides.yaml", TOP) if (run / name).exists()],
}  # fmt: skip
REACH: dict[str, Tamper] = {
    "Imagenette": override("data=imagenette"),
    "Imagewoof": override("++data={source:imagewoof}"),
    "a mirror": override("data=imagenette", "++data.url=http://127.0.0.1:9/imagenette2-160.tgz"),
    "wandb": override("++callbacks.wandb={}"),
    "mlflow": override("++callbacks.mlflow={}"),
    "an environment variable": override("++run.name=${oc.env:HOME}"),
    "a folder": override("data=sample", "++data.dir=OUTSIDE/canary"),
}
SIZES: dict[str, Tamper] = {
    "a large model": configure(model={"kind": "xresnet50", "width": 16}),
    "a large image": configure(aug__size=4096),
    "an expanded momentum": state("last.pt", lambda s: momentum(s, torch.zeros(1).expand(2**40))),
    "another momentum": state("last.pt", lambda s: momentum(s, torch.zeros(3))),
    "no optimizer": state("last.pt", lambda s: s.update(optimizer={})),
    "other callbacks": state("last.pt", lambda s: s.update(callbacks={key: {"rows": 1} for key in s["callbacks"]})),
    "another loader": state("last.pt", lambda s: s["loader"].update(consumed=2**70)),
    "a position": state("last.pt", lambda s: s.update(position=(-1, 10**9))),
    "random states": state("last.pt", lambda s: s.update(random={"cpu": torch.zeros(1), "cuda": []})),
    "classes with escapes": state("best.pt", lambda s: s.update(classes=tuple(ESCAPE + c for c in s["classes"]))),
    "a task": state("best.pt", lambda s: s.update(task=ESCAPE)),
    "a name with escapes": configure(run__name=ESCAPE),
    "aliases": text("config.yaml", "a: &a [x, x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip(
        "abcdefghijk", "bcdefghijkl", strict=True))),
}  # fmt: skip
RUN_TEXTS = [(name, content) for name in ("config.yaml", "summary.json", "metrics.jsonl", ".hydra/overrides.yaml")
             for content in ("", DEEP, "[1, 2]", DIGITS)] + [("left_out.json", DEEP)]  # fmt: skip
RUN_TEXTS += [("run.json", DEEP), ("run.json", '{"task": ["x"], "images": [1]}')]
JOB_TEXTS = [(name, content) for name in ("job.json", "summary.json", TOP) for content in ("", DEEP, "[1]", DIGITS)]
SWEPT: dict[str, Tamper] = {
    "a swept plugin": ask("++plugins=[evil],[evil,json]"),
    "a configuration elsewhere": elsewhere,
    "a launcher": override("hydra/launcher=slurm", "hydra.launcher.cluster=local"),
    "a job elsewhere": lambda run, outside: (
        shutil.move(run, outside / "folder" / "job"),
        run.symlink_to(outside / "folder" / "job"),
    ),
}
SEARCHED = [("../study.journal", content) for content in ("", "{", DEEP, "[1]\n", '{"op_code": 99}\n', "\0" * 99)]


def named(files: list[str], texts: list[tuple[str, str]], *tables: dict[str, Tamper]) -> dict[str, Tamper]:
    """Return what to do to a folder, by name."""
    ways = {f"a link at {name}": link(name) for name in files} | {f"a pipe at {name}": pipe(name) for name in files}
    ways |= {f"{content[:6]!r} in {name[:20]}": text(name, content) for name, content in texts}
    return ways | {name: tamper for table in tables for name, tamper in table.items()}


WAYS = {
    "run": named([*RUN_FILES], RUN_TEXTS, CODE, REACH, SIZES),
    "sweep": named([*RUN_FILES[1:4], *RUN_FILES[7:], *JOB_FILES], JOB_TEXTS, CODE, REACH, SIZES, SWEPT),
    "search": named([*RUN_FILES[7:], *JOB_FILES, *SEARCH_FILES], SEARCHED, CODE, REACH, SIZES, SWEPT),
}
CASES = [(kind, way) for kind, ways in WAYS.items() for way in ways]
SAMPLED = [
    *(("run", "a link at trainer.log"), ("run", "a pipe at left_out.json"), ("run", "an expanded momentum")),
    *(("sweep", "a link at .hydra"), ("sweep", "a configuration elsewhere"), ("sweep", "wandb")),
    *(("search", "a swept plugin"), ("search", "a pipe at ../study.journal"), ("search", "Imagenette")),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a sweep and a search, each with something left to do."""
    home = tmp_path_factory.mktemp("strangers")
    here, given = Path.cwd(), [*ARGUMENTS, f"data.root={draw_classes(home / 'photos')}"]
    os.chdir(home)
    try:
        main([*given, "hydra.run.dir=run"])
        main(["-m", *given, "seed=0,1", "hydra.sweep.dir=sweep"])
        main(["-m", *given, "fit.lr=interval(0.01,0.1)", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2",
              "hydra.sweeper.finalists=0", "hydra.sweep.dir=search"])  # fmt: skip
    finally:
        os.chdir(here)
    for folder in (home / "run", job_of(home / "sweep"), job_of(home / "search")):
        file = folder / "summary.json"
        file.write_text(file.read_text().replace('"finished"', '"interrupted"'))
    return home


def job_of(folder: Path) -> Path:
    """Return the folder of a run, or that of a sweep's first job."""
    return min((file.parent for file in folder.glob("*/job.json")), default=folder)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was asked of the network, which is not there."""
    asked: list[object] = []

    def refuse(*address: object, **options: object) -> None:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


def tools_on(kind: str, folder: Path, home: Path) -> Iterator[list[str]]:
    """Yield the command lines that work on a folder."""
    root = f"data.root={home / 'photos'}"
    yield ["compare", str(folder), str(home / "run")]
    yield ["dashboard", str(folder), "--out", "page.html"]
    job = job_of(folder)
    if kind == "run":
        yield ["report", str(folder)]
        yield ["evaluate", str(folder)]
        yield ["predict", str(folder), str(home / "photos" / "val" / "ant" / "0.png"), "--csv", "-"]
        yield [*ARGUMENTS, root, "fit.resume=auto", f"hydra.run.dir={folder}"]
        yield [f"fit.resume={folder}", "fit.epochs=2", "hydra.run.dir=resumed"]
        return
    yield ["sweep", "show", str(folder)]
    yield ["sweep", "work", str(folder), f"--job={job.name}"]
    yield ["sweep", "retry", str(folder)]
    yield ["sweep", "resume", str(folder), *(["hydra.sweeper.n_trials=3"] if kind == "search" else [])]


def outside_of(top: Path, folder: Path) -> dict[Path, bytes]:
    """Return the files that nothing may change."""
    mine = (folder, top / "outputs", top / "resumed", top / "page.html")
    files = [path for path in top.rglob("*") if not any(path.is_relative_to(one) for one in mine)]
    return {path: path.read_bytes() for path in files if path.is_file()}


@pytest.mark.parametrize(
    ("kind", "way"),
    [pytest.param(*case, marks=[pytest.mark.sample] if case in SAMPLED else []) for case in CASES],
)
def test_a_hostile_folder_does_no_harm(
    kind: str,
    way: str,
    home: Path,
    tmp_path: Path,
    network: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    clean_registry: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    canary, folder, outside = tmp_path / "outside" / "canary", tmp_path / "theirs", tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    for name in ("bashrc", "folder/overrides.yaml"):
        (outside / name).write_text(SECRET)
    (outside / "evil.yaml").write_text(
        "# @package _global_\nplugins: [evil]\ndata: {source: sample}\nmodel: {kind: cnn}\n"
    )
    (tmp_path / "evil.py").write_text(EVIL.format(canary=str(canary)))
    shutil.copytree(home / kind, folder, symlinks=True)
    WAYS[kind][way](job_of(folder), outside)
    before = outside_of(tmp_path, folder)

    def late(*_: object) -> None:
        raise TimeoutError(f"{command} hangs")

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    codes: list[object] = []
    try:
        for command in tools_on(kind, folder, home):
            try:
                codes.append(main(command))
            except SystemExit as ended:
                codes.append(ended.code)
            printed = "".join(capfd.readouterr())
            assert "Traceback" not in printed, command
            assert "\033" not in printed, command
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    assert not canary.exists()
    assert outside_of(tmp_path, folder) == before
    assert network == []
    assert set(codes) <= {0, 1, 2}
