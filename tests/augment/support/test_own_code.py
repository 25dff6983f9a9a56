"""What users' own code raises is said with its line, before anything else."""

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import build_loader
from PIL import Image

from augment.cli.parser import readable_errors
from augment.data.dataset import Split
from augment.data.own.factory import find_object
from augment.recipe.op import numpy_op
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from augment.support.user_code import OwnCodeError, load_plugins

TABLE: dict[str, int] = {}


@pytest.fixture
def _declared(clean_registry: None) -> None:
    @numpy_op()
    def torn(image: Any) -> Any:
        """Fail."""
        return image * TABLE["no such key"]


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("A = 0\nB = 1 / 0\n", r"ZeroDivisionError: division by zero \(.*mine\.py, line 2: B = 1 / 0\)\.$"),
        ("def f(:\n    pass\n", r"SyntaxError: invalid syntax \(.*mine\.py, line 1\)\.$"),
        ("import numpy\nnumpy.zeros(-1)\n", r"ValueError: negative .* \(.*mine\.py, line 2: numpy\.zeros\(-1\)\)\.$"),
    ],
)
def test_a_plugin_that_raises(code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=rf"^plugins: cannot import mine: {message}"):
        load_plugins(("mine",), "plugins")


@pytest.mark.usefixtures("clean_registry")
def test_own_code_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [name for name in sys.path if name and Path(name) != Path.cwd()])
    monkeypatch.chdir(tmp_path)
    for name in ("mine_here", "data_here"):
        Path(f"{name}.py").write_text("pairs = []\n")
    load_plugins(("mine_here",), "plugins")
    monkeypatch.setattr(sys, "path", [name for name in sys.path if name != str(tmp_path)])
    assert find_object("data_here.pairs", "data.train") == []
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.usefixtures("_declared")
def test_an_op_that_raises(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file)
    plan = build_plan(parse_aug({"size": 8, "train": {"torn": None}}), "train")
    loader = build_loader(plan, Split((file,), (0,)), batch_size=1, seed=0, classes="a")
    with pytest.raises(OwnCodeError) as caught:
        list(loader)
    assert str(caught.value).startswith(f"KeyError: 'no such key' ({__file__}, line ")
    assert str(caught.value).endswith(': return image * TABLE["no such key"]).')


def test_a_failed_pipeline_is_not_freed_by_its_own_thread(clean_registry: None, tmp_path: Path) -> None:
    collections: list[int] = []
    failed = threading.Event()

    @numpy_op()
    def fails(image: Any) -> Any:
        """Fail."""
        if failed.is_set():
            time.sleep(0.2)  # until the loader has the error of the first batch
            collections.append(gc.collect())  # if this freed the pipeline, the process would abort
        failed.set()
        raise KeyError

    file = tmp_path / "a.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file)
    plan = build_plan(parse_aug({"size": 8, "train": {"fails": None}}), "train")
    try:
        list(build_loader(plan, Split((file,) * 8, (0,) * 8), batch_size=1, seed=0, classes="a"))
    except OwnCodeError as error:
        cycle: list[Any] = [error]
        cycle.append(cycle)  # an error that only the garbage collector frees
        del cycle
    time.sleep(0.5)
    assert len(collections) > 0


def test_anything_else_that_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, readable_errors():
        TABLE["neither this"]
    assert stopped.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: KeyError: 'neither this' ({__file__}, line ")
