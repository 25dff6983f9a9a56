"""Pictures that change or disappear while a run reads them: said in a sentence, with the file."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from stores import FIXED
from test_broken_sources import file_of, jpeg, load, put, put_both

from augment.dataset import Split
from augment.errors import UserError
from augment.loader import Loader
from augment.lost import explain
from trainer.cli import main
from trainer.recorder import read_metrics

pytest.importorskip("pyarrow")

Damage = Callable[[Path], object]


def cut(file: Path) -> None:
    """In place, as who writes a file anew does it first."""
    with file.open("r+b") as stream:
        stream.truncate(100)


def replace(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(split: Split) -> Loader:
    return Loader(FIXED, split, batch_size=2, seed=0, device=torch.device("cpu"))


def said(split: Split, damage: Callable[[], object]) -> str:
    """What is said of a split that is damaged after an epoch."""
    loader = make(split)
    assert len(list(loader)) == 3
    damage()
    with pytest.raises(UserError) as caught:
        epochs(loader, 4)  # some batches were read ahead
    return str(caught.value)


def epochs(loader: Loader, number: int) -> None:
    for _ in range(number):
        list(loader)


SAMPLES = [(jpeg(number), number % 3, "") for number in range(6)]


@pytest.mark.parametrize("source", ["webdataset", "tfrecord", "recordio", "lmdb", "numpy"])
def test_a_larger_file_that_changes_is_named(source: str) -> None:
    split = load(source, put_both(source, SAMPLES, SAMPLES[:3])).train
    file = file_of(source)
    text = said(split, lambda: cut(file))
    assert re.fullmatch(
        rf"data: train\S+ cannot be read any more: it has changed since it was indexed \(.*{file}\)\.", text
    )
    # A pipeline that is built anew is no better.
    with pytest.raises(UserError, match="cannot be read any more"):
        list(make(split))


@pytest.mark.parametrize("source", ["webdataset", "lmdb", "numpy"])
def test_a_mapped_file_that_is_gone_is_named(source: str) -> None:
    split = load(source, put_both(source, SAMPLES, SAMPLES[:3])).train
    text = said(split, file_of(source).unlink)
    assert re.search(rf"cannot be read any more: No such file or directory \(.*{file_of(source)}\)\.", text)


@pytest.mark.parametrize("source", ["webdataset", "tfrecord"])
def test_a_larger_file_that_was_never_opened_and_is_gone(source: str) -> None:
    split = load(source, put_both(source, SAMPLES, SAMPLES[:3])).train
    from augment.records.spans import _opened

    _opened.cache_clear()
    file_of(source).unlink()
    with pytest.raises(UserError, match=rf"cannot be read any more: No such file or directory \(.*{file_of(source)}\)"):
        list(make(split))


def photos() -> Split:
    for name in ("train", "val"):
        put("folder", name, SAMPLES)
    # By their whole paths: DALI holds files open by their names.
    return load("folder", {"root": str(Path("set").resolve())}).train


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "cannot be read: No such file or directory"),
        (cut, "is broken: "),
        (lambda file: replace(file, b""), r"is empty \(0 bytes\)"),
        (lambda file: replace(file, b"words " * 100), "is no picture that DALI decodes"),
    ],
    ids=["gone", "cut", "empty", "text"],
)
def test_a_file_of_its_own_is_named(damage: Damage, message: str) -> None:
    split = photos()
    file = Path(str(split.files[4]))
    text = said(split, lambda: damage(file))
    assert re.match(rf"data: a picture has changed since the run began: {file} {message}", text)


def test_what_no_file_is_to_blame_for_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    split = photos()
    loader = make(split)

    def fail(*_: object) -> Sequence[object]:
        raise RuntimeError("Error in CPU operator `nvidia.dali.fn.decoders.image`: out of luck")

    list(loader)
    monkeypatch.setattr(type(loader._pipeline), "outputs", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        list(loader)


def test_files_are_looked_at_only_where_they_may_be_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million that would take minutes."""
    looked: list[int] = []
    monkeypatch.setattr("augment.lost.check_files", lambda files: looked.append(len(files)))
    files = (Path("a.jpg"), Path("b.jpg"), Path("a.jpg"))
    decoder = "Error in MIXED operator `nvidia.dali.fn.decoders.image`"
    for text in ("Error in GPU operator `nvidia.dali.fn.warp_affine`", f"{decoder}\nCUDA allocation failed", "no"):
        assert explain(RuntimeError(text), files) is None
    assert not looked
    assert explain(RuntimeError(decoder), files) is None
    assert explain(RuntimeError("`nvidia.dali.fn.readers.file`\n\nFile mapping failed: b.jpg\nC++"), files) is None
    assert looked == [2, 1]


PLUGIN = """
    from dataclasses import dataclass
    from pathlib import Path

    from trainer.callback import Callback
    from trainer.callbacks import configurable

    @configurable
    @dataclass(eq=False)
    class LosePicture(Callback):
        '''Takes a picture away after two epochs.'''

        def after_epoch(self, learner):
            if learner.epoch == 1:
                Path("set/train/class 1/1.jpg").rename("away.jpg")
"""


@pytest.fixture
def _plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from trainer.callbacks import _CALLBACKS

    Path("lose_picture.py").write_text(dedent(PLUGIN))
    monkeypatch.syspath_prepend(".")
    known = dict(_CALLBACKS)
    yield
    _CALLBACKS.clear()
    _CALLBACKS.update(known)
    sys.modules.pop("lose_picture", None)


@pytest.mark.slow
@pytest.mark.usefixtures("_plugin")
def test_a_run_ends_in_a_sentence_and_goes_on_from_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    put("folder", "train", SAMPLES)
    put("folder", "val", SAMPLES[:3])
    given = [
        "data=folder",
        f"data.root={Path('set').resolve()}",
        "plugins=[lose_picture]",
        "+callbacks.lose_picture={}",
        "fit.epochs=6",
    ]
    given += ["aug.size=64", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1", "callbacks.plots=null"]
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    (folder,) = Path("outputs").glob("2*/*")
    errors = [line for line in capsys.readouterr().err.splitlines() if "[ERROR]" not in line]  # that are DALI's own
    picture = Path("set/train/class 1/1.jpg").resolve()
    expected = f"data: a picture has changed since the run began: {picture} cannot be read: No such file"
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {expected}")
    assert errors[0].endswith(f"fit.resume={folder} goes on from its last checkpoint.")
    log = (folder / "trainer.log").read_text()
    assert expected in log
    assert "Traceback" not in log
    # Some batches were read ahead.
    page = (folder / "report.html").read_text()
    assert re.search(rf"The run failed after [2-4] of 6 epochs: {re.escape(expected)}", page)
    assert json.loads((folder / "summary.json").read_text())["epochs"] == len(read_metrics(folder)) >= 2
    shutil.move("away.jpg", picture)
    assert main([f"fit.resume={folder}"]) == 0
    resumed = max(Path("outputs").glob("2*/*/metrics.jsonl"), key=lambda file: file.stat().st_mtime).parent
    assert [row["epoch"] for row in read_metrics(resumed)] == list(range(6))
