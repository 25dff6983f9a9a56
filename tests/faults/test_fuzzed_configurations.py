"""Random configurations and command lines: each is accepted, or rejected with one sentence and exit code 2."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from augment.cli.compose import compose
from augment.cli.parser import USAGE
from augment.support.errors import UserError
from trainer.cli.main import main
from trainer.run.config.checks import check_config
from trainer.run.config.schema import parse_config
from trainer.run.folder.summary import Summary

pytestmark = pytest.mark.faults

EXTREMES = st.sampled_from([
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 1e-320, 1e308, float("nan"),
    float("inf"), "", "x y", "null", "true", "1", "1e3", "nan", "cuda:99", "../..", "/", "/dev/null", "\x00", "ü",
    "鳥", "🐦", "'", '"', "\\", "${seed}", "${oc.env:HOME}", "${", "=cmd", "a" * 300, [], {}, [[]], [None], {"p":
    0.5}, {"": 1}, {1: 2}, [0.5, 0.25], [1, 2, 3],
])  # fmt: skip
VALUES = EXTREMES | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def paths(section: dict[Any, Any], above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every key of a nested mapping."""
    found = []
    for key, value in section.items():
        found.append((*above, key))
        if isinstance(value, dict):
            found += paths(value, (*above, key))
    return found


def replaced(base: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a copy with another value at a path."""
    copy = deepcopy(base)
    inner = copy
    for key in path[:-1]:
        inner = inner[key] if isinstance(inner.get(key), dict) else inner.setdefault(key, {})
        if not isinstance(inner, dict):
            return copy
    inner[path[-1]] = value
    return copy


def fuzz(test: Callable[..., None], examples: int, **strategies: st.SearchStrategy[Any]) -> None:
    """Run a test on the same random examples each time."""
    settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )(given(**strategies)(test))()


@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize("examples", [pytest.param(30, marks=pytest.mark.sample), 2000])
def test_a_configuration_is_accepted_or_rejected(
    examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bases = [compose(["fit.device=cpu", aug]) for aug in ("+aug=imagenette", "+aug=strong", "+aug=rand_augment")]
    changes = st.sampled_from(bases).flatmap(
        lambda base: st.tuples(
            st.just(base),
            st.lists(
                st.tuples(
                    st.sampled_from(paths(base)) | st.tuples(st.sampled_from([*base]), st.text(max_size=6)), VALUES
                ),
                min_size=1,
                max_size=3,
            ),
        )
    )
    outcomes = {"accepted": 0, "rejected": 0}

    def test(given: tuple[dict[str, Any], list[tuple[tuple[Any, ...], Any]]]) -> None:
        config, edits = given
        for path, value in edits:
            config = replaced(config, path, value)
        try:
            check_config(parse_config(config))
            outcomes["accepted"] += 1
        except UserError:
            outcomes["rejected"] += 1

    fuzz(test, examples, given=changes)
    assert min(outcomes.values()) > examples / 100


KEYS = st.sampled_from([
    "aug", "+aug", "~aug", "aug.size", "++aug.size", "~aug.train.rotate", "aug.train.rotate.p", "aug.train", "data",
    "data.root", "data.source", "model", "~model", "model.name", "fit.lr", "fit.epochs", "fit.stages", "fit.resume",
    "fit", "seed", "callbacks", "callbacks.checkpoint.every", "~callbacks.plots", "plugins", "hydra.run.dir",
    "hydra.sweep.dir", "hydra.job.name", "hydra/launcher", "hydra.searchpath", "+experiment", "-m", "--cfg",
    "--config-dir", "--config-name", "--help", "--trust", "", "=",
])  # fmt: skip
TEXTS = st.sampled_from([
    "imagenette", "strong", "folder", "cnn", "timm", "null", "0", "1,2", "range(3)", "glob(*)", "choice(1,2)",
    "int(3)", "[1,2", "{a:1}", "{a: {b: [1]}}", "'", '"', "${seed}", "${oc.env:HOME}", "${x", "\\", "$(id)",
    "1e999", "-1", "job", "..", "/dev/null", "a" * 5000, "ü", "\x00", "\n",
])  # fmt: skip
TOKENS = st.one_of(KEYS, TEXTS, st.text(max_size=12), st.tuples(KEYS, TEXTS | st.text(max_size=12)).map("=".join))


@pytest.mark.parametrize("examples", [pytest.param(8, marks=pytest.mark.sample), 500])
def test_a_command_line_is_accepted_or_rejected(
    examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["trainer"])
    ended = Summary("finished", tmp_path, 0, {}, {}, 0.0)
    monkeypatch.setattr("trainer.cli.main.run_job", lambda *_, **__: ended)  # nothing is trained
    for launch in ("run", "search"):
        monkeypatch.setattr(f"trainer.sweeps.sweep.command.{launch}", lambda *_: 0)
    codes: dict[int, int] = {}

    def test(tokens: list[str]) -> None:
        monkeypatch.setattr("sys.argv", ["trainer"])
        capfd.readouterr()
        try:
            code = main([*tokens, "fit.device=cpu"])
        except SystemExit as ended:
            code = int(str(ended.code))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert code == 0 or (code == USAGE and err.strip()), (code, err)
        codes[code] = codes.get(code, 0) + 1

    fuzz(test, examples, tokens=st.lists(TOKENS, min_size=1, max_size=3))
    assert codes[USAGE] > examples / 4
    assert not list(tmp_path.rglob("last.pt"))
