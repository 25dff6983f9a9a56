"""A user's own code as a source: what it may hand over, what is read when, and what is said where it is wrong."""

import importlib
import logging
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stores import FIXED

from augment import convert
from augment.config import parse_aug
from augment.dataset import Dataset, Split
from augment.errors import UserError
from augment.info.scan import scan
from augment.loader import Loader
from augment.own.items import ItemPicture, Items, end_readers
from augment.own.named import Named
from augment.pipeline import Shard
from augment.plan import build_plan
from augment.sources import load_dataset, parse_data
from augment.stored import open_picture, read_encoded

CPU = torch.device("cpu")

# Seven photos of varied size and three classes; `READ` counts what was asked of the Dataset.
MODULE = """
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

FILES = sorted(Path("photos").glob("*.png"), key=lambda file: int(file.stem))
TARGETS = [2, 0, 1, 1, 2, 0, 2]
NAMES = ["ant", "bee", "cow"]
READ = []


def paths():
    return list(zip(map(str, FILES), TARGETS))


def some_paths():
    return paths()[:3]


def encoded():
    for file, target in zip(FILES, TARGETS):
        yield file.read_bytes(), NAMES[target]


class Photos(torch.utils.data.Dataset):
    classes = NAMES

    def __init__(self, kind="pillow", targets=True, limit=7):
        self.kind = kind
        self.limit = limit
        if targets:
            self.targets = TARGETS[:limit]

    def __len__(self):
        return self.limit

    def __getitem__(self, index):
        READ.append(index)
        image = Image.open(FILES[index])
        pixels = np.array(image)
        picture = {
            "pillow": lambda: image,
            "array": lambda: pixels,
            "tensor": lambda: torch.from_numpy(pixels).permute(2, 0, 1),
            "bytes": lambda: FILES[index].read_bytes(),
            "path": lambda: FILES[index],
        }[self.kind]()
        return picture, TARGETS[index]


def part():
    return torch.utils.data.Subset(Photos(), [4, 0, 2, 3])


def both():
    return torch.utils.data.ConcatDataset([Photos(limit=2), Photos(limit=3)])


listed = [(np.array(Image.open(file)), target) for file, target in zip(FILES, TARGETS)]
"""


@pytest.fixture(autouse=True)
def _module(pictures: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with seven photos and my_data.py, in which the program is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "photos").mkdir()
    for number, file in enumerate(pictures.files):
        with open_picture(file) as image:
            image.save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "my_data.py").write_text(MODULE)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def my_data() -> ModuleType:
    return importlib.import_module("my_data")


def load(train: str = "my_data.Photos", val: str | None = None, **settings: Any) -> Dataset:
    return parse_data({"source": "own", "train": train, "val": val or train, **settings}).load()


def written(code: str, **settings: Any) -> Dataset:
    """Load `train` of a module that has this code."""
    Path("mine.py").write_text(dedent(code))
    sys.modules.pop("mine", None)
    return load("mine.train", **settings)


def make(split: Split, *, device: torch.device = CPU, **options: Any) -> Loader:
    return Loader(FIXED, split, batch_size=2, seed=3, device=device, raw=True, **options)


def samples(loader: Loader) -> list[tuple[Any, bytes]]:
    return [
        (target, pixels.cpu().numpy().tobytes())
        for batch in loader
        for target, pixels in zip(batch.targets.tolist(), batch.images, strict=True)
    ]


def epoch(split: Split, **options: Any) -> list[tuple[Any, bytes]]:
    return samples(make(split, **options))


def folder_split() -> Split:
    return Split(tuple(Path("photos") / f"{n}.png" for n in range(7)), (2, 0, 1, 1, 2, 0, 2))


# --- what it may hand over ---

KINDS = ("pillow", "array", "tensor", "bytes", "path")
GIVEN = [
    *(pytest.param("my_data.Photos", {"options": {"kind": kind}}, id=kind) for kind in KINDS),
    pytest.param("my_data:Photos", {"options": {"targets": False}}, id="without_targets"),
    pytest.param("my_data.paths", {}, id="function_of_paths"),
    pytest.param("my_data.encoded", {}, id="generator_of_bytes"),
    pytest.param("my_data.listed", {}, id="list"),
]


@pytest.mark.parametrize(("name", "settings"), GIVEN)
def test_an_epoch_has_the_same_pixels_and_targets_as_of_a_folder(
    name: str, settings: Any, device: torch.device
) -> None:
    split, expected = load(name, **settings).train, Counter(epoch(folder_split(), device=device))
    assert len(expected) == 7
    loader = make(split, device=device)
    orders = [samples(loader), samples(loader)]
    assert [Counter(order) for order in orders] == [expected, expected]
    assert orders[0] != orders[1]
    ranks = [epoch(split, shard=Shard(rank, 3), device=device) for rank in range(3)]
    assert sum(map(Counter, ranks), Counter()) == expected


@pytest.mark.parametrize("kind", ["pillow", "bytes"])
def test_a_pass_is_resumed_exactly(kind: str) -> None:
    plan = build_plan(parse_aug({"size": 16, "train": {"random_resized_crop": {}, "hue": {"p": 0.5}}}), "train")
    split = load(options={"kind": kind}).train

    def loader() -> Loader:
        return Loader(plan, split, batch_size=2, seed=3, device=CPU, raw=True)

    def batches(loader: Loader) -> list[tuple[list[int], bytes]]:
        return [(batch.indices.tolist(), batch.images.numpy().tobytes()) for batch in loader]

    straight = loader()
    expected = [batches(straight) for _ in range(2)]
    stopped = loader()
    next(iter(stopped))
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert batches(resumed) == expected[0][1:]
    assert batches(resumed) == expected[1]


def test_paths_are_files_like_others() -> None:
    dataset = load("my_data.paths")
    assert dataset.train.files == tuple(Path(f"photos/{n}.png") for n in range(7))
    assert dataset.classes == ("0", "1", "2")
    Path("photos/3.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 of 7 train pictures cannot be used:\n.*3\.png is empty"):
        load("my_data.paths")
    given = {"source": "own", "train": "my_data.paths", "val": "my_data.paths"}
    assert len(parse_data(given).unchecked().train) == 7
    assert len(load("my_data.paths", skip_bad=True).train) == 6


@pytest.mark.slow
def test_processes_read_the_same() -> None:
    split = load(options={"kind": "pillow"}, workers=2).train
    assert Counter(epoch(split)) == Counter(epoch(folder_split()))
    assert my_data().READ == 2 * [0, 2, 4, 6]  # of train and of val: all else was read elsewhere
    assert active_children()
    end_readers()
    assert not active_children()


def test_readers_that_died_are_replaced() -> None:
    items = Items(Named("data.train", "my_data.Photos", '{"data.options": {"kind": "bytes"}}'))
    dead = ThreadPoolExecutor(1, initializer=sys.exit)
    with pytest.raises(BrokenExecutor):
        dead.submit(int).result()
    items._readers = dead
    (found,) = items.begin({7: 2}, decoded=False)
    assert found.result() == {7: Path("photos/2.png").read_bytes()}


@pytest.mark.parametrize(("workers", "sizes"), [(0, [32, 32, 6]), (3, [24, 24, 22])])
def test_items_are_asked_for_a_few_at_a_time(workers: int, sizes: list[int]) -> None:
    items = Items(Named("data.train", "my_data.Photos", '{"data.options": {"kind": "bytes"}}', workers))
    items._readers = ThreadPoolExecutor(1)  # in place of processes
    found = [future.result() for future in items.begin({place: place % 7 for place in range(70)}, decoded=False)]
    assert [len(some) for some in found] == sizes
    assert {k: v for some in found for k, v in some.items()} == {
        place: Path(f"photos/{place % 7}.png").read_bytes() for place in range(70)
    }


def test_pictures_of_two_sequences_are_read_together() -> None:
    dataset = load(options={"kind": "bytes"}, val_options={"limit": 5})
    pictures: dict[int, Any] = {5: dataset.train.files[1], 6: dataset.val.files[2], 9: dataset.train.files[3]}
    found = [future.result() for future in ItemPicture.begin(pictures)]
    assert [sorted(some) for some in found] == [[5, 9], [6]]
    assert {key: read for some in found for key, read in some.items()} == {k: p.read() for k, p in pictures.items()}


@pytest.mark.parametrize("kind", ["array", "bytes"])
def test_pictures_travel_to_other_processes_by_name(kind: str) -> None:
    picture: Any = load(options={"kind": kind}).train.files[3]
    pickled = pickle.dumps(picture)
    assert len(pickled) < 500
    twin = pickle.loads(pickled)
    assert (twin.name, twin.read()) == ("my_data.Photos[3]", picture.read())
    with open_picture(twin) as image, Image.open("photos/3.png") as original:
        np.testing.assert_array_equal(np.asarray(image), np.asarray(original))


def test_they_are_converted(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["data=own", "data.train=my_data.Photos", "data.val=my_data.Photos", "data.options.kind=array"]
    assert convert.main([*given, "--to", "folder", "--out", "out", "--jobs", "1"]) == 0
    assert "train: 7 pictures" in capsys.readouterr().out
    dataset = parse_data({"source": "folder", "root": "out"}).load()
    assert dataset.classes == ("ant", "bee", "cow")
    assert Counter(epoch(dataset.val)) == Counter(epoch(folder_split()))


def test_what_is_learned_and_scored_on_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    load(val="my_data.part")
    load(options={"kind": "array"}, val_options={"kind": "bytes"})
    assert "learns" not in caplog.text
    load()
    assert "data.val: is made as data.train is, by my_data.Photos with the same arguments" in caplog.text
    load("my_data.paths", val="my_data.some_paths")
    assert "3 of 3 pictures are in train too, as photos/0.png" in caplog.text


# --- what is read when ---


def test_known_targets_cost_no_pictures() -> None:
    dataset = load(val="my_data.part")
    assert my_data().READ == [0, 2, 4, 6, 4, 0, 2, 3]  # four of each, to know whether they are these
    assert (dataset.classes, dataset.train.targets) == (("ant", "bee", "cow"), (2, 0, 1, 1, 2, 0, 2))
    assert dataset.val.targets == (2, 2, 1, 1)
    picture: Any = dataset.val.files[1]
    with Image.open("photos/0.png") as original:
        np.testing.assert_array_equal(picture.read_pixels(), np.asarray(original))
    assert load("my_data.both").train.targets == (2, 0, 2, 0, 1)


def test_an_epoch_reads_each_picture_once() -> None:
    split = load().train
    my_data().READ.clear()
    loader = make(split)
    list(loader)
    # DALI is three batches of two ahead, and as many are begun beyond these; the last batch is padded with no reading.
    assert Counter(my_data().READ[:7]) == Counter(range(7))
    assert len(my_data().READ) <= 7 + 2 * 5


def test_their_code_is_called_once_at_a_time() -> None:
    code = """
    import io
    import time
    from PIL import Image

    class Photos:
        targets = [0, 1] * 100
        inside = 0

        def __len__(self):
            return 200

        def __getitem__(self, index):
            self.inside += 1
            assert self.inside == 1, "two at a time"
            time.sleep(0)  # another thread's turn
            self.inside -= 1
            return Image.new("RGB", (8, 8)), index % 2

    train = Photos()
    """
    # Pictures are checked by several threads.
    assert len(written(code, skip_bad=True).train) == 200


def test_readers_end_with_a_run_and_begin_with_the_next() -> None:
    def reading() -> bool:
        return any(thread.name.startswith("items") for thread in threading.enumerate())

    end_readers()
    split = load().train
    first = epoch(split)
    assert reading()
    end_readers()
    assert not reading()
    assert epoch(split) == first


def test_unknown_targets_cost_a_pass(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        dataset = load(options={"targets": False})
    assert "my_data.Photos has no `targets` that are those of its items: all 7 items are read once" in caplog.text
    assert dataset.train.targets == (2, 0, 1, 1, 2, 0, 2)
    assert Counter(my_data().READ[:8]) == Counter([0, *range(7)])


def test_targets_that_are_transformed_are_not_those_of_the_attribute() -> None:
    code = """
        from my_data import Photos

        class train(Photos):
            target_transform = None
            def __getitem__(self, index):
                picture, target = super().__getitem__(index)
                return picture, 2 - target
    """
    assert written(code).train.targets == (0, 2, 1, 1, 0, 2, 0)
    code = code.replace("2 - target", "target if index == 0 else 2 - target")
    assert written(code.replace("= None", "= True")).train.targets == (2, 2, 1, 1, 0, 2, 0)


@pytest.mark.parametrize(
    ("known", "items", "reads"),
    [
        ("[0.1, 0.7, 2.5]", "torch.tensor([0.1, 0.7, 2.5])", 3),  # the items in float32, which rounds
        ("torch.tensor([[1, 0], [1, 1], [0, 1]])", "[[1, 0], [1, 1], [0, 1]]", 3),
        ("['a', 'b', 'b']", "['a', 'b', 'b']", 3),
        ("np.array(['a', 'b', 'b'])", "['a', 'b', 'b']", 3),
        ("np.array([['a'], ['a', 'b'], []], object)", "[['a'], ['a', 'b'], []]", 3),  # as a column of pandas
        ("['a', 'b', 'b']", "[0, 1, 1]", 4),
        ("[0, 1]", "[0, 1, 1]", 4),
        ("[0, 1, 1]", "[0, 1, 0]", 6),  # those of another order, of which some are the same
    ],
)
def test_known_targets_are_compared_with_items(known: str, items: str, reads: int) -> None:
    code = f"""
        from my_data import *

        class train:
            targets, items, calls = {known}, {items}, 0
            def __len__(self):
                return 3
            def __getitem__(self, index):
                train.calls += 1
                return FILES[index], self.items[index]
    """
    written(code)
    assert importlib.import_module("mine").train.calls == 2 * reads  # of train and of val


def test_arguments_of_both_and_of_one() -> None:
    given = {"options": {"kind": "array", "limit": 6}, "val_options": {"limit": 5}}
    dataset = load(**given)
    assert [len(dataset.train), len(dataset.val)] == [6, 5]
    source = parse_data({"source": "own", "train": "my_data.Photos", "val": "my_data.Photos", **given})
    assert load_dataset(source) is load_dataset(source)
    one, same, other = (
        parse_data({"source": "own", "train": "a.b", "val": "a.b", "options": {"x": value}}) for value in (1, 1, True)
    )
    assert (one == same, one == other, len({one, same, other})) == (True, False, 2)


# --- what targets mean ---


@pytest.mark.parametrize(
    ("targets", "settings", "task", "classes", "found"),
    [
        ("[5, 7, 5]", {"label_offset": 5}, "classify", ("5", "6", "7"), (0, 2, 0)),
        ("[np.int64(0), torch.tensor(1), True]", {}, "classify", ("0", "1"), (0, 1, 1)),
        ("['b', 'a', 'b']", {}, "classify", ("a", "b"), (1, 0, 1)),
        ("[['a', 'b'], [], {'b'}]", {}, "multilabel", ("a", "b"), ((1.0, 1.0), (0.0, 0.0), (0.0, 1.0))),
        ("[[1], [0, 2], (2,)]", {}, "multilabel", ("0", "1", "2"), ((0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.0, 0.0, 1.0))),
        ("list(torch.tensor([[1, 1], [0, 1], [0, 0]]))", {}, "multilabel", ("0", "1"),
         ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0))),
        ("[20.5, 3, 4.0]", {}, "regress", ("target",), ((20.5,), (3.0,), (4.0,))),
        ("[20, 3, 4]", {"targets": ["age"]}, "regress", ("age",), ((20.0,), (3.0,), (4.0,))),
        ("[(20, 1.5), (3, 1), (4, 2)]", {"targets": ["age", "height"]}, "regress", ("age", "height"),
         ((20.0, 1.5), (3.0, 1.0), (4.0, 2.0))),
        ("list(np.array([[20, 1.5], [3, 1], [4, 2]]))", {}, "regress", ("target_1", "target_2"),
         ((20.0, 1.5), (3.0, 1.0), (4.0, 2.0))),
    ],
)  # fmt: skip
def test_targets(targets: str, settings: Any, task: str, classes: Any, found: Any) -> None:
    dataset = written(f"from my_data import *\ntrain = list(zip(FILES, {targets}))", **settings)
    assert (dataset.task, dataset.classes, dataset.train.targets) == (task, classes, found)


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        ("[0, None, 1]", {}, r"^data\.train: the target of mine\.train\[1\] is None\. Allowed: a class"),
        ("[0, {'label': 1}, 1]", {}, r"mine\.train\[1\] is a dict of 1\. Allowed"),
        ("[0, 'a', 1]", {}, r"mine\.train\[0\] has the label 0, and mine\.train\[1\] has the label 'a'"),
        ("[0, -1, 1]", {}, r"mine\.train\[1\] has the label -1, which is out of range"),
        ("[np.array([0, 1]), np.array([1, 1]), np.array([1])]", {},
         r"mine\.train\[2\] is of another kind, an array \(1,\), than that of mine\.train\[0\], an array \(2,\)"),
        ("[1.5, float('nan'), 1]", {}, r"mine\.train\[1\] has the target nan\. Allowed: finite numbers"),
        ("[1.5, 'a', 1]", {"task": "regress"}, r"mine\.train\[1\] has the target \['a'\]\. Allowed: as many numbers"),
        ("[[0, 1], 1, 1]", {"task": "classify"}, r"mine\.train\[0\] has 2 labels"),
    ],
)  # fmt: skip
def test_targets_that_are_none(targets: str, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(f"from my_data import *\ntrain = list(zip(FILES, {targets}))", **settings)


# --- what is wrong with it ---


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_data", r"^data\.train=my_data: names no object of a module\. Allowed: module\.name, or module:name"),
        ("my-data.train", "names no object of a module"),
        ("my_dat.paths", r"there is no module 'my_dat'\. Did you mean 'my_data'\?"),
        ("my_data.path", r"my_data has no 'path'\. Did you mean 'paths'\? Allowed: .*Photos"),
        ("my_data:Photos.kinds", r"my_data\.Photos has no 'kinds'"),
    ],
)
def test_names_that_mean_nothing(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(name)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Photos", {"options": {"knd": 1}},
         r"^data\.options\.knd: data\.train=my_data\.Photos takes no such argument\. Did you mean 'kind'"),
        ("Photos", {"val_options": {"tagets": 1}},
         r"^data\.val_options\.tagets: data\.val=my_data\.Photos takes no such argument\. Did you mean 'targets'"),
        ("Photos", {"train_options": {"limit": 9, "targets": False}},
         r"^data\.train=my_data\.Photos: item 7: IndexError: list index out of range \(.*my_data\.py, line "),
        ("listed", {"train_options": {"limit": 9}}, r"^data\.train_options: data\.train=my_data\.listed is no f"),
    ],
)  # fmt: skip
def test_arguments_that_it_does_not_take(name: str, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(f"my_data.{name}", **settings)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_there", r"importing mine: ModuleNotFoundError: No module named 'not_there' \(.*mine\.py, line 1"),
        ("x = (1,\n", r"importing mine: SyntaxError: .* \(.*mine\.py, line 1\)"),
        ("1 / 0", r"importing mine: ZeroDivisionError: division by zero \(.*mine\.py, line 1: 1 / 0\)"),
        ("def train():\n    return open('no.csv')",
         r"^data\.train=mine\.train: FileNotFoundError: .*no\.csv' \(.*mine\.py, line 2: return open\('no\.csv'\)\)"),
        ("import sys\nsys.exit()", r"importing mine: SystemExit \(.*mine\.py, line 2: sys\.exit\(\)\)"),
        ("def train(): raise SystemExit(2)", r"^data\.train=mine\.train: SystemExit: 2 \(.*mine\.py, line 1"),
        ("def train(root): pass", r"^data\.options\.root: missing, for data\.train=mine\.train needs it: \(root\)"),
        ("def train(): pass", r"gives None\. Allowed: pairs, \(picture, target\), or a Dataset"),
        ("def train(): return {}", r"gives a dict of 0\. Allowed"),
        ("def train(): return []", r"^data\.train=mine\.train: has no items"),
        ("train = 3", r"^data\.train=mine\.train: is an int\. Allowed: a function, a class, a Dataset or a list"),
        ("def train():\n    yield 'a.png', 0\n    raise KeyError('b')",
         r"after 1 items: KeyError: 'b' \(.*mine\.py, line 3: raise KeyError\('b'\)\)"),
        ("import torch\ndef train(): return torch.utils.data.DataLoader([1])", "gives a DataLoader. Allowed: its data"),
        ("import torch\nclass train(torch.utils.data.IterableDataset):\n  def __iter__(self): yield 1",
         "gives an IterableDataset, whose items have no places"),
        ("import torch\nclass train(torch.utils.data.Dataset):\n  def __len__(self): raise OSError('gone')",
         r"its length: OSError: gone \(.*mine\.py, line 3"),
    ],
)  # fmt: skip
def test_code_that_fails(code: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(code)


ITEM = r"^data\.train: item 0 of mine\.train "


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("np.zeros((2, 3))", ITEM + r"is an array \(2, 3\)\. Allowed: a pair"),
        ("3", ITEM + r"is an int\. Allowed: a pair, \(picture, target\)"),
        ("(1, 2, 3)", ITEM + r"is a tuple of 3\. Allowed: a pair"),
        ("{'image': 1, 'label': 2}", ITEM + r"is a dict of 2\. Allowed: a pair"),
        ("(None, 0)", ITEM + r"has for a picture None\. Allowed: a path, encoded bytes, a Pillow image"),
        ("(np.zeros((3, 8, 8), np.uint8), 0)", ITEM + r"has for a picture an array \(3, 8, 8\) of uint8\. Allowed"),
        ("(torch.zeros(8, 8, 3, dtype=torch.uint8), 0)", r"a tensor \(8, 8, 3\) of uint8\. Allowed"),
        ("(torch.zeros(3, 8, 8), 0)", r"a tensor \(3, 8, 8\) of float32; ToTensor and Normalize are left to the `aug`"),
        ("(np.zeros((0, 8, 3), np.uint8), 0)", r"an array \(0, 8, 3\) of uint8"),
        ("(Image.new('I', (4, 4)), 0)", "a Pillow image of mode I, which has more than 8 bits"),
        ("(Image.new('HSV', (4, 4)), 0)", r"a Pillow image of mode HSV\. Allowed"),
    ],
)
def test_items_that_are_none(item: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(f"from my_data import *\ntrain = [{item}]")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("1 / 0", r"^data\.train=mine\.train: item 2: ZeroDivisionError: division by zero \(.*mine\.py, line 8: "),
        ("b'no picture'", r"^data\.train: item 2 of mine\.train has a picture that is no picture that DALI decodes"),
        ("FILES[2].read_bytes()[:-9]", r"item 2 of mine\.train has a picture that is broken: "),
        ("Path('gone.png')", r"item 2 of mine\.train cannot be read: No such file or directory: gone\.png"),
        (
            "Image.new('RGB', (4, 4))",
            r"item 2 .* has a picture that is decoded; that of item 0 is encoded\. Allowed: all",
        ),
    ],
)
def test_a_picture_that_fails_when_it_is_read(item: str, message: str) -> None:
    code = f"""\
        from my_data import *

        class train:
            targets = TARGETS
            def __len__(self):
                return 7
            def __getitem__(self, index):
                return ({item} if index == 2 else FILES[index].read_bytes()), TARGETS[index]
    """
    split = written(code).train
    with pytest.raises(UserError, match=message):
        epoch(split)


@pytest.mark.parametrize("kind", ["pillow", "bytes"])
def test_pictures_that_fail_are_left_out_if_asked_and_told(kind: str) -> None:
    code = f"""\
        from my_data import *

        class train(Photos):
            def __init__(self):
                super().__init__("{kind}")
            def __getitem__(self, index):
                if index == 2:
                    raise OSError("gone")
                return super().__getitem__(index)
    """
    assert set(scan(written(code).train.files).faults) == {2}
    assert written(code, skip_bad=True).train.targets == (2, 0, 1, 2, 0, 2)
    listed = "from my_data import *\ntrain = [Photos()[0], (np.zeros(3), 1), Photos()[1]]"
    with pytest.raises(UserError, match=r"1 of 3 train pictures cannot be used:\n  mine\.train\[1\] fails: .* float64"):
        written(listed)


def test_gray_pictures_become_rgb_and_turned_ones_upright() -> None:
    code = """\
        from my_data import *
        gray = np.arange(12, dtype=np.uint8).reshape(3, 4)
        turned = Image.fromarray(np.stack([gray] * 3, 2))
        exif = turned.getexif()
        exif[0x0112] = 3
        stream = io.BytesIO()
        turned.save(stream, "PNG", exif=exif)
        tensor = torch.from_numpy(gray)
        train = [(gray, 0), (gray[..., None], 0), (tensor, 0), (tensor[None], 0), (Image.fromarray(gray), 0),
                 (Image.open(stream), 0)]
    """
    files: Any = written(code).train.files
    gray = np.arange(12, dtype=np.uint8).reshape(3, 4, 1).repeat(3, 2)
    for file in files[:5]:
        np.testing.assert_array_equal(file.read_pixels(), gray)
    np.testing.assert_array_equal(files[5].read_pixels(), gray[::-1, ::-1])
    assert read_encoded(files[0]).startswith(b"P6\n4 3\n255\n")  # type: ignore[arg-type]
