"""A user's own code as a source: the images it may return, and when they are read."""

import threading
from collections import Counter
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded import for_device
from loaders import build_loader
from own_data import epoch, load, make, my_data, own_module, samples, written  # noqa: F401  (a fixture)
from PIL import Image

from augment.data.dataset import Split
from augment.data.images import read_encoded
from augment.data.own.prefetch import end_readers
from augment.data.sources import parse_data
from augment.pipeline.loader import Loader
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug
from augment.support.errors import UserError
from augment.tools import convert

pytestmark = pytest.mark.usefixtures("own_module")


def folder_split() -> Split:
    return Split(tuple(Path("photos") / f"{n}.png" for n in range(7)), (2, 0, 1, 1, 2, 0, 2))


# --- what it may hand over ---

KINDS = ("pillow", "array", "tensor", "bytes", "path")
GIVEN = [
    *(pytest.param("my_data.Photos", {"options": {"kind": kind}}, id=kind) for kind in KINDS),
    pytest.param("my_data.Photos", {"options": {"targets": False}}, id="without_targets"),
    pytest.param("my_data.paths", {}, id="function_of_paths"),
    pytest.param("my_data.encoded", {}, id="function_of_bytes"),
    pytest.param("my_data.listed", {}, id="list"),
]


def folder_epoch(device: torch.device) -> Counter[tuple[Any, bytes]]:
    """Return the targets and pixels of an epoch of the folder."""
    split = folder_split()
    expected = Counter(epoch(Split(for_device(split.files, device), split.targets), device=device))
    assert len(expected) == 7
    return expected


@pytest.mark.parametrize(("name", "settings"), GIVEN)
def test_an_epoch_has_the_same_pixels_and_targets_as_of_a_folder(
    name: str, settings: Any, device: torch.device
) -> None:
    split, expected = load(name, **settings).train, folder_epoch(device)
    loader = make(split, device=device)
    orders = [samples(loader), samples(loader)]
    assert [Counter(order) for order in orders] == [expected, expected]
    assert orders[0] != orders[1]


def test_epochs_resume_exactly() -> None:
    plan = build_plan(parse_aug({"size": 16, "train": {"random_resized_crop": {}, "hue": {"p": 0.5}}}), "train")
    split = load().train

    def loader() -> Loader:
        return build_loader(plan, split, batch_size=2, seed=3, raw=True)

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


def test_paths_are_read_like_other_files() -> None:
    dataset = load("my_data.paths")
    assert dataset.train.files == tuple(Path(f"photos/{n}.png") for n in range(7))
    assert dataset.classes == ("0", "1", "2")
    Path("photos/3.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 of 7 train images cannot be used:\n.*3\.png is empty"):
        load("my_data.paths")
    assert len(load("my_data.paths", skip_bad=True).train) == 6


@pytest.mark.slow
@pytest.mark.long
def test_processes_read_the_same() -> None:
    split = load(options={"kind": "pillow"}, workers=2).train
    assert Counter(epoch(split)) == Counter(epoch(folder_split()))
    assert len(my_data().READ) == 2 * 7 + 4 * 7  # of train and of val: all else was read elsewhere
    assert active_children()
    end_readers()
    assert not active_children()


def test_own_data_can_be_converted(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["data=own", "data.train=my_data.Photos", "data.val=my_data.Photos", "data.options.kind=array"]
    assert convert.main([*given, "--to", "folder", "--out", "out"]) == 0
    assert "train: 7 images" in capsys.readouterr().out
    dataset = parse_data({"source": "folder", "root": "out"}).load()
    assert dataset.classes == ("ant", "bee", "cow")
    assert Counter(epoch(dataset.val)) == Counter(epoch(folder_split()))


def test_overlap_of_train_and_val_is_reported() -> None:
    def notices(*names: str, **settings: Any) -> str:
        return "; ".join(load(*names, **settings).notices)

    others = notices(options={"kind": "array"}, val_options={"kind": "bytes"})
    assert "learns" not in notices(val="my_data.part") + others
    assert "data.val is my_data.Photos with the same arguments as data.train" in notices()
    copied = "3 of 3 val images are copies of train images, such as photos/0.png"
    assert copied in notices("my_data.paths", "my_data.some_paths")


def test_gray_images_become_rgb_and_rotated_ones_upright() -> None:
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


@pytest.mark.parametrize("buffer", ["np.zeros((8, 8, 3), np.uint8)", "torch.zeros(8, 8, 3).byte().permute(2, 0, 1)"])
def test_items_may_share_a_buffer(buffer: str) -> None:
    code = f"""\
        from my_data import *

        class train:
            image, target = {buffer}, np.zeros(2)
            def __len__(self):
                return 200
            def __getitem__(self, index):
                self.image[:] = index
                self.target[:] = index, 0
                return self.image, self.target
    """
    # Images are checked by several threads.
    split = written(code, task="regress", skip_bad=True).train
    assert [target for target, _ in split.targets] == list(range(200))  # type: ignore[misc]
    for target, pixels in epoch(split):
        assert set(pixels) == {int(target[0])}


# --- what is read when ---


def test_images_that_are_drawn_at_random_are_noticed() -> None:
    draws = "def __getitem__(self, index): return np.random.randint(0, 256, (9, 9, 3), np.uint8), index"
    code = f"import numpy as np\nclass train:\n  def __len__(self): return 2\n  {draws}"
    assert any(n.startswith("data.val: item 0 of mine.train has a different image") for n in written(code).notices)
    with pytest.raises(UserError, match=r"^data\.train: item 0 of mine\.train .* Return the same target each time"):
        written(code.replace("uint8), index", "uint8), np.random.rand()"))


def test_known_targets_cost_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.data.own.reader._COMPARED", 4)
    dataset = load(val="my_data.part")
    assert my_data().READ[:8] == [0, 2, 4, 6, 4, 0, 2, 3]  # some of each, to know whether they are these
    assert (dataset.classes, dataset.train.targets) == (("ant", "bee", "cow"), (2, 0, 1, 1, 2, 0, 2))
    assert dataset.val.targets == (2, 2, 1, 1)
    image: Any = dataset.val.files[1]
    with Image.open("photos/0.png") as original:
        np.testing.assert_array_equal(image.read_pixels(), np.asarray(original))
    assert load("my_data.both").train.targets == (2, 0, 2, 0, 1)


def test_readers_end_with_a_run_and_restart_with_the_next() -> None:
    def reading() -> bool:
        return any(thread.name.startswith("items") for thread in threading.enumerate())

    end_readers()
    split = load().train
    first = epoch(split)
    assert reading()
    end_readers()
    assert not reading()
    assert epoch(split) == first
