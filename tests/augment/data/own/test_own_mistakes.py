"""Error messages about a user's own code."""

from pathlib import Path
from typing import Any

import pytest
from own_data import epoch, load, make, own_module, written  # noqa: F401  (a fixture)
from stores import epochs

from augment.support.errors import UserError
from augment.tools.info.scan import scan_images

pytestmark = pytest.mark.usefixtures("own_module")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_data", r"^data\.train=my_data does not name an object of a module\. Use the form module\.name"),
        ("my_dat.paths", r"module 'my_dat' .*\. Did you mean 'my_data'\?"),
        ("my_data.path", r"my_data has no 'path'\. Did you mean 'paths'\? Allowed: .*Photos"),
        ("__main__.of_a_cell", r"cannot import names from a notebook.* Set data\.workers=0"),
    ],
)
def test_names_of_missing_objects_are_rejected(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(name)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Photos", {"options": {"knd": 1}},
         r"^data\.options\.knd: data\.train=my_data\.Photos has no such argument\. Did you mean 'kind'"),
        ("Photos", {"train_options": {"limit": 9, "targets": False}},
         r"^data\.train=my_data\.Photos: item 7: IndexError: list index out of range \(.*my_data\.py, line "),
        ("listed", {"train_options": {"limit": 9}}, r"^data\.train_options: data\.train=my_data\.listed is not a f"),
    ],
)  # fmt: skip
def test_unknown_arguments_are_rejected(name: str, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(f"my_data.{name}", **settings)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_there", r"import mine: ModuleNotFoundError: No module named 'not_there' \(.*mine\.py, line 1"),
        ("x = (1,\n", r"cannot import mine: SyntaxError: .* \(.*mine\.py, line 1\)"),
        ("def train():\n    return open('no.csv')",
         r"^data\.train=mine\.train: FileNotFoundError: .*no\.csv' \(.*mine\.py, line 2: return open\('no\.csv'\)\)"),
        ("def train(): raise SystemExit(2)", r"^data\.train=mine\.train: SystemExit: 2 \(.*mine\.py, line 1"),
        ("def train(root): pass", r"^data\.train=mine\.train: train\(\) missing 1 required .*: 'root'"),
        ("def train(): pass", r"returns None\. Return a list of pairs, \(image, target\), or a Dataset"),
        ("def train(): return []", r"^data\.train=mine\.train has no items"),
        ("train = 3", r"^data\.train=mine\.train is an int\. Allowed: a function, a class, a Dataset or a list"),
        ("def train():\n    yield 'a.png', 0", r"returns a generator\. Return a list of pairs"),
        ("import torch\nclass train(torch.utils.data.IterableDataset):\n  def __iter__(self): yield 1",
         "returns a train. Return a list .* or a Dataset of them with __len__ and __getitem__, without batches"),
        ("import torch\nclass train(torch.utils.data.Dataset):\n  def __len__(self): raise OSError('gone')",
         r"its length: OSError: gone \(.*mine\.py, line 3"),
    ],
)  # fmt: skip
def test_exceptions_of_user_code_are_described(code: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(code)


ITEM = r"^data\.train: item 0 of mine\.train "


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("(np.zeros((3, 8, 8), np.uint8), 0)", ITEM + r"has an array \(3, 8, 8\) of uint8 as its image\. Allowed"),
        ("(torch.zeros(3, 8, 8), 0)", r"a tensor \(3, 8, 8\) of float32\. Remove ToTensor and Normalize"),
        ("(Image.new('I', (4, 4)), 0)", "a Pillow image of mode I, 4 x 4 pixels, instead of 8 bits"),
        ("(Image.open(io.BytesIO(FILES[0].read_bytes()[:999])), 0)", r"a Pillow image that cannot be read: image"),
    ],
)
def test_invalid_items_are_rejected(item: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(f"from my_data import *\ntrain = [{item}]")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("1 / 0", r"^data\.train=mine\.train: item 2: ZeroDivisionError: division by zero \(.*mine\.py, line 8: "),
        ("b'no image'", r"^data\.train: item 2 of mine\.train has an image that is not an image that DALI decodes"),
        ("FILES[2].read_bytes()[:-9]", r"item 2 of mine\.train has an image that is broken: "),
        ("Path('gone.png')", r"item 2 of mine\.train cannot be read: No such file or directory: gone\.png"),
        ("Image.new('RGB', (4, 4))", r"item 2 .* has a decoded image, but item 0 has an encoded one\."),
    ],
)
def test_an_image_that_fails_during_training_is_named(item: str, message: str) -> None:
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
def test_skip_bad_leaves_out_failing_images_and_reports_them(kind: str) -> None:
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
    assert [bool(fault) for fault in scan_images(written(code).train.files)["fault"]].index(True) == 2
    assert written(code, skip_bad=True).train.targets == (2, 0, 1, 2, 0, 2)
    listed = "from my_data import *\ntrain = [Photos()[0], (np.zeros(3), 1), Photos()[1]]"
    with pytest.raises(UserError, match=r"1 of 3 train images cannot be used:\n  mine\.train\[1\] fails: .* float64"):
        written(listed)


@pytest.mark.parametrize(("kind", "workers"), [("bytes", 0), pytest.param("pillow", 1, marks=pytest.mark.slow)])
def test_an_item_that_begins_to_fail_during_training_is_named(kind: str, workers: int) -> None:
    code = f"""\
        from my_data import *

        class train(Photos):
            def __init__(self):
                super().__init__("{kind}")
            def __getitem__(self, index):
                if Path("lost").exists() and index == 4:
                    raise OSError("the server is gone")
                return super().__getitem__(index)
    """
    loader = make(written(code, skip_bad=True, workers=workers).train)
    list(loader)
    Path("lost").touch()
    with pytest.raises(
        UserError, match=r"^data\.train=mine\.train: item 4: OSError: the server is gone.* Repair it to"
    ) as caught:
        epochs(loader, 2)
    assert type(caught.value) is UserError
