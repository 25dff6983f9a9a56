"""Folders of strangers: 60 hostile runs, sweeps and searches; no tool runs their code, hangs or writes elsewhere."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import CODE, REACH, SIZES, SWEPT, TOP, Tamper, code_of, link, network, outside_of, pipe, set_up, text
from runs import draw_classes

from trainer.cli.main import main

__all__ = ["network"]

pytestmark = pytest.mark.faults

LIMIT = 120  # seconds of all tools on a folder

DEEP = '{"a":' * 10**5
DIGITS = "9" * 5000
ARGUMENTS = [
    *("data=folder", "aug.size=16", "fit.batch_size=2", "fit.epochs=1", "fit.device=cpu", "fit.threads=1"),
    *("callbacks.plots=null", "callbacks.report=null"),
]

RUN_FILES = [
    *("config.yaml", "summary.json", "metrics.jsonl", "steps.jsonl", "environment.json", "plan.txt"),
    *("last.pt", "best.pt", "trainer.log", ".lock", ".hydra/overrides.yaml", ".hydra", "run.json", "mistakes.json"),
]
JOB_FILES = ["job.json", "../sweep.yaml", "../sweep.md", "../sweep.json"]
SEARCH_FILES = ["../trials.json", "../.trials.lock", "../search.md", "../search.json"]
RUN_TEXTS = [(name, content) for name in ("config.yaml", "summary.json", "metrics.jsonl", ".hydra/overrides.yaml")
             for content in ("", DEEP, "[1, 2]", DIGITS)]  # fmt: skip
RUN_TEXTS += [("run.json", DEEP), ("run.json", '{"task": ["x"], "images": [1]}')]
JOB_TEXTS = [(name, content) for name in ("job.json", "summary.json", TOP) for content in ("", DEEP, "[1]", DIGITS)]
SEARCHED = [("../trials.json", text) for text in ("", "{", DEEP, "[1]", '{"trials": [{"chosen": 1}]}', "\0" * 99)]


def named(files: list[str], texts: list[tuple[str, str]], *tables: dict[str, Tamper]) -> dict[str, Tamper]:
    """Return what to do to a folder, by name."""
    ways = {f"a link at {name}": link(name) for name in files} | {f"a pipe at {name}": pipe(name) for name in files}
    ways |= {f"{content[:6]!r} in {name[:20]}": text(name, content) for name, content in texts}
    return ways | {name: tamper for table in tables for name, tamper in table.items()}


WAYS = {
    "run": named([*RUN_FILES], RUN_TEXTS, CODE, REACH, SIZES),
    "sweep": named([*RUN_FILES[1:4], *RUN_FILES[6:], *JOB_FILES], JOB_TEXTS, CODE, REACH, SIZES, SWEPT),
    "search": named([*RUN_FILES[6:], *JOB_FILES, *SEARCH_FILES], SEARCHED, CODE, REACH, SIZES, SWEPT),
}
CASES = [(kind, way) for kind, ways in WAYS.items() for way in ways]
SAMPLED = [("run", "an expanded momentum"), ("sweep", "a configuration elsewhere"), ("search", "a swept plugin")]


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


def tools_on(kind: str, folder: Path, home: Path) -> Iterator[list[str]]:
    """Yield the command lines that work on a folder."""
    root = f"data.root={home / 'photos'}"
    yield ["compare", str(folder), str(home / "run")]
    yield ["dashboard", str(folder), "--out", "page.html"]
    if kind == "run":
        yield ["report", str(folder)]
        yield ["evaluate", str(folder)]
        yield ["predict", str(folder), str(home / "photos" / "val" / "ant" / "0.png"), "--csv", "-"]
        yield [*ARGUMENTS, root, "fit.resume=auto", f"hydra.run.dir={folder}"]
        yield [f"fit.resume={folder}", "fit.epochs=2", "hydra.run.dir=resumed"]
        return
    yield ["sweep", "show", str(folder)]
    yield ["sweep", "work", str(folder)]
    yield ["sweep", "retry", str(folder)]
    yield ["sweep", "resume", str(folder), *(["hydra.sweeper.n_trials=3"] if kind == "search" else [])]


@pytest.mark.parametrize(
    ("kind", "way"), [pytest.param(*case, marks=[pytest.mark.sample] if case in SAMPLED else []) for case in CASES]
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
    folder, (outside, canary) = tmp_path / "theirs", set_up(tmp_path)
    shutil.copytree(home / kind, folder, symlinks=True)
    WAYS[kind][way](job_of(folder), outside)
    mine = (folder, *(tmp_path / name for name in ("outputs", "resumed", "page.html")))
    before = outside_of(tmp_path, *mine)

    def late(*_: object) -> None:
        raise TimeoutError(f"{command} hangs")

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    codes: list[int] = []
    try:
        for command in tools_on(kind, folder, home):
            codes.append(code_of(main, *command))
            printed = "".join(capfd.readouterr())
            assert "Traceback" not in printed, command
            assert "\033" not in printed, command
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    assert not canary.exists()
    assert outside_of(tmp_path, *mine) == before
    assert network == []
    assert set(codes) <= {0, 1, 2}
