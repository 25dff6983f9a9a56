"""Images that change or disappear while a run reads them: said in a sentence, with the file."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from files_of_sources import file_of, jpeg, load, put, put_both
from photos import draw_photo
from PIL import Image
from stores import FIXED
from torch import Tensor

from augment.data.check import Problem
from augment.data.dataset import ImageRef, Split
from augment.pipeline.batch import Batch
from augment.pipeline.failures import find_bad
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan, build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from trainer.callbacks.recorder import read_metrics
from trainer.cli.main import main

pytest.importorskip("pyarrow")

pytestmark = pytest.mark.usefixtures("own_folder")

RANDOM = build_plan(parse_aug({"size": 16, "train": {"random_resized_crop": {}, "flip": {}, "rotate": {}}}), "train")

Damage = Callable[[Path], object]


def cut(file: Path) -> None:
    """In place, as who writes a file anew does it first."""
    with file.open("r+b") as stream:
        stream.truncate(100)


def replace(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


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


@pytest.mark.parametrize("source", ["lmdb", "numpy"])
def test_a_mapped_file_that_is_gone_is_named(source: str) -> None:
    split = load(source, put_both(source, SAMPLES, SAMPLES[:3])).train
    text = said(split, file_of(source).unlink)
    assert re.search(rf"cannot be read any more: No such file or directory \(.*{file_of(source)}\)\.", text)


@pytest.mark.parametrize("source", ["webdataset", "tfrecord"])
def test_a_larger_file_that_was_never_opened_and_is_gone(source: str) -> None:
    split = load(source, put_both(source, SAMPLES, SAMPLES[:3])).train
    from augment.data.formats.spans import _opened

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
        (lambda file: replace(file, b"words " * 100), "is no image that DALI decodes"),
    ],
    ids=["gone", "cut", "empty", "text"],
)
def test_a_file_of_its_own_is_named(damage: Damage, message: str) -> None:
    split = photos()
    file = Path(str(split.files[4]))
    text = said(split, lambda: damage(file))
    assert re.match(rf"data: an image has changed since the run began: {file} {message}", text)


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
    looked: list[Sequence[ImageRef]] = []

    def look(files: Sequence[ImageRef]) -> list[Problem]:
        looked.append(files)
        return []

    monkeypatch.setattr("augment.pipeline.failures.check_files", look)
    a, b = files = (Path("a.jpg"), Path("b.jpg"))
    decoder = "Error in MIXED operator `nvidia.dali.fn.decoders.image`"
    for text in ("Error in GPU operator `nvidia.dali.fn.warp_affine`", f"{decoder}\nCUDA allocation failed", "no"):
        assert find_bad(RuntimeError(text), files) == []
    assert not looked
    find_bad(RuntimeError(decoder), (*files, a))
    find_bad(RuntimeError("`nvidia.dali.fn.readers.file`\n\nFile mapping failed: b.jpg\nC++"), files)
    find_bad(RuntimeError(decoder), files, changed=lambda: [b])
    assert looked == [[a, b], [b], [b], [a, b]]


class Stored:
    """An encoded image in memory whose bytes can be damaged."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content

    def read(self) -> bytes:
        return self.content


def replaceable(stored: bool, max_bad: int, plan: Plan = FIXED) -> tuple[Loader, Split]:
    """A loader of 24 images of 3 classes: files of their own, or in larger ones."""
    samples = [(jpeg(number), number % 3, "") for number in range(24)]
    put("folder", "train", samples)
    put("folder", "val", SAMPLES[:3])
    split = load("folder", {"root": str(Path("set").resolve())}).train
    if stored:
        images = tuple(Stored(f"{file}", Path(str(file)).read_bytes()) for file in split.files)
        split = Split(images, split.targets)
    split = dataclasses.replace(split, max_bad=max_bad)
    return Loader(plan, split, batch_size=4, seed=0, device=torch.device("cpu"), classes=3), split


def spoil(image: ImageRef) -> None:
    """Damage the pixels of an image, whose header stays good."""
    content = damaged_png()
    if isinstance(image, Path):
        image.unlink()
        image.write_bytes(content)
    else:
        assert isinstance(image, Stored)
        image.content = content


def damaged_png() -> bytes:
    stream = BytesIO()
    Image.effect_noise((40, 40), 80).save(stream, "PNG")
    content = stream.getvalue()
    start = content.index(b"IDAT")
    return content[: start + 60] + bytes(40) + content[start + 100 :]


def seen(batches: Iterable[Batch]) -> list[tuple[int, Tensor]]:
    return [(int(index), image) for batch in batches for index, image in zip(batch.indices, batch.images, strict=True)]


@pytest.mark.parametrize("stored", [False, True], ids=["files", "stored"])
@pytest.mark.parametrize("plan", [FIXED, RANDOM], ids=["fixed", "random"])
def test_another_image_of_the_class_stands_in(stored: bool, plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    loader, _ = replaceable(stored, 2, plan)
    whole = [seen(loader) for _ in range(4)]
    loader, split = replaceable(stored, 2, plan)
    found = [seen(loader)]
    spoil(split.files[5])
    found += [seen(loader) for _ in range(3)]
    replaced = [(a, b) for epoch, other in zip(whole, found, strict=True) for a, b in zip(epoch, other, strict=True)]
    others = [(a, b) for a, b in replaced if a[0] != b[0]]
    assert all(a == b and torch.equal(image, other) for (a, image), (b, other) in replaced if a == b)
    assert {a for (a, _), _ in others} == {5}
    (stand_in,) = {b for _, (b, _) in others}
    assert split.targets[stand_in] == split.targets[5]
    assert len(others) >= 2
    assert caplog.text.count("stands in for it (1 of data.max_bad=2)") == 1


def test_a_resumed_loader_keeps_those_that_stand_in() -> None:
    loader, split = replaceable(False, 2, RANDOM)
    list(loader)
    spoil(split.files[5])
    list(loader)
    list(loader)
    passing = iter(loader)
    next(passing)
    state = loader.state_dict()
    rest = seen(passing)
    again, _ = Loader(RANDOM, split, batch_size=4, seed=0, device=torch.device("cpu"), classes=3), split
    again.load_state_dict(state)
    resumed = seen(again)
    assert [index for index, _ in resumed] == [index for index, _ in rest]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(resumed, rest, strict=True))


def test_an_image_that_stands_in_may_turn_bad_itself() -> None:
    """Which images stand in does not depend on the order in which the bad ones were found."""
    loader, split = replaceable(False, 9)
    list(loader)
    spoil(split.files[5])
    epochs(loader, 3)
    first = loader._bad.stand_ins[5]
    spoil(split.files[first])
    epochs(loader, 3)
    found = dict(loader._bad.stand_ins)
    assert set(found) == {5, first}
    assert not {5, first} & set(found.values())
    assert {split.targets[index] for index in (5, first, *found.values())} == {split.targets[5]}
    other = Loader(FIXED, split, batch_size=4, seed=0, device=torch.device("cpu"))
    list(other)
    assert other._bad.stand_ins == found


def test_more_bad_images_than_allowed_end_the_run() -> None:
    loader, split = replaceable(False, 1)
    list(loader)
    for index in (2, 5):
        spoil(split.files[index])
    with pytest.raises(
        UserError, match=r"data\.max_bad=1: 2 images turned out bad during training, last .+ is broken: "
    ):
        epochs(loader, 4)


def test_stored_images_that_cannot_be_decoded_are_named() -> None:
    loader, split = replaceable(True, 0)
    spoil(split.files[5])
    with pytest.raises(UserError, match=r"data: an image has changed since the run began: .+ is broken: "):
        list(loader)


def test_a_file_that_is_replaced_by_a_good_one_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    loader, split = replaceable(False, 0)
    for epoch in range(4):
        list(loader)
        loader._bad.watch.wait()
        if epoch == 0:
            file = Path(str(split.files[5]))
            replace(file, jpeg(77))
            os.utime(file, ns=(1, 1))
    assert [record.message for record in caplog.records if "copies" not in record.message] == [
        f"data: {file} was replaced during training; epochs differ from here on"
    ]


PLUGIN = """
    from dataclasses import dataclass
    from pathlib import Path

    from trainer.loop.callback import Callback
    from trainer.callbacks.registry import configurable

    @configurable
    @dataclass(eq=False)
    class LoseImage(Callback):
        '''Takes an image away after two epochs.'''

        def after_epoch(self, learner):
            if learner.epoch == 1:
                Path("set/train/class 1/1.jpg").rename("away.jpg")
"""


@pytest.fixture
def _plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from trainer.callbacks.registry import _CALLBACKS, known_callbacks

    Path("lose_image.py").write_text(dedent(PLUGIN))
    monkeypatch.syspath_prepend(".")
    known = dict(known_callbacks())
    yield
    _CALLBACKS.clear()
    _CALLBACKS.update(known)
    sys.modules.pop("lose_image", None)


@pytest.mark.slow
@pytest.mark.usefixtures("_plugin")
def test_a_run_ends_in_a_sentence_and_continues_from_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    put("folder", "train", SAMPLES)
    put("folder", "val", SAMPLES[:3])
    given = [
        "data=folder",
        f"data.root={Path('set').resolve()}",
        "plugins=[lose_image]",
        "+callbacks.lose_image={}",
        "fit.epochs=6",
    ]
    given += ["aug.size=64", "fit.batch_size=2", "fit.device=cpu", "fit.threads=1", "callbacks.plots=null"]
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    (folder,) = Path("outputs").glob("2*/*")
    errors = [line for line in capsys.readouterr().err.splitlines() if "[ERROR]" not in line]  # that are DALI's own
    image = Path("set/train/class 1/1.jpg").resolve()
    expected = f"data: an image has changed since the run began: {image} cannot be read: No such file"
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {expected}")
    assert errors[0].endswith(f"fit.resume={folder} continues from its last checkpoint.")
    log = (folder / "trainer.log").read_text()
    assert expected in log
    assert "Traceback" not in log
    # Some batches were read ahead.
    page = (folder / "report.html").read_text()
    assert re.search(rf"The run failed after [2-4] of 6 epochs: {re.escape(expected)}", page)
    assert json.loads((folder / "summary.json").read_text())["epochs"] == len(read_metrics(folder)) >= 2
    shutil.move("away.jpg", image)
    assert main([f"fit.resume={folder}", "plugins=[lose_image]"]) == 0
    resumed = max(Path("outputs").glob("2*/*/metrics.jsonl"), key=lambda file: file.stat().st_mtime).parent
    assert [row["epoch"] for row in read_metrics(resumed)] == list(range(6))


OVERWRITTEN = """
import os, sys, time
from pathlib import Path
from threading import Thread
import torch
from augment.data.dataset import Split
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError

files = sorted(Path(sys.argv[1]).glob("*.jpg"))
content = {file: file.read_bytes() for file in files}

def overwrite():
    while True:
        for file, whole in content.items():
            file.write_bytes(whole)

Thread(target=overwrite, daemon=True).start()
plan = build_plan(parse_aug({"size": 32, "train": {"random_resized_crop": {}}}), "train")
begun, failed = time.monotonic(), 0
while time.monotonic() - begun < 1.5:
    loader = Loader(plan, Split(tuple(files), (0,) * len(files)), batch_size=8, seed=0, device=torch.device("cpu"))
    try:
        for _ in range(20):
            for batch in loader:
                pass
    except (UserError, RuntimeError):  # the image may be whole again when it is looked at
        failed += 1
print("alive", failed > 0, flush=True)
os._exit(0)
"""


def test_images_that_are_overwritten_while_they_are_read_do_not_end_the_process(tmp_path: Path) -> None:
    """A file that is mapped into memory and becomes shorter would."""
    for number in range(8):
        Image.fromarray(draw_photo(400, 300, number)).save(tmp_path / f"{number}.jpg", quality=95)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", OVERWRITTEN, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "alive True\n"), done.stderr[-500:]
