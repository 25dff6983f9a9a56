"""python -m augment convert: what it prints, what it rejects, and formats that DALI does not decode."""

import shlex
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from raster_bytes import pixels, tiff

from augment.cli.compose import compose_recipe
from augment.data.sources import parse_data
from augment.tools.convert import as_overrides, main

pytestmark = pytest.mark.usefixtures("own_folder")


def test_any_number_of_threads_writes_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("augment.data.conversion._SHARD_BYTES", 2**20)
    rng = np.random.default_rng(0)
    for number in range(24):
        file = Path("d", "train" if number % 3 else "val", "ab"[number % 2], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (256, 256, 3), np.uint8)).save(file)  # 192 KiB
    for jobs in ("1", "3"):
        given = ["data=folder", "data.root=d", "--to", "webdataset", "--out", jobs]
        monkeypatch.setattr("augment.data.conversion.cores", partial(int, jobs))
        assert main(given) == 0
    one, three = ({file.name: file.read_bytes() for file in Path(jobs).iterdir()} for jobs in "13")
    assert len(one) > 4
    assert one == three
    assert capsys.readouterr().out.splitlines()[3:] == [
        "train: 16 images",
        "val: 8 images",
        "Verified by reading everything back. To use the data: data=webdataset 'data.train=3/train-*.tar' "
        "'data.val=3/val-*.tar' data.task=classify data.classes=3/classes.txt",
    ]


def test_the_printed_line_is_read_as_it_was_written() -> None:
    names = ['a "b", c', "it's", "rüde \u2603", "true", "c:\\", "[x]", "age"]
    settings = {"source": "filelist", "train": "my photos/t.csv", "val": "v.csv", "targets": names, "multilabel": True}
    assert compose_recipe(shlex.split(as_overrides(settings))).source() == parse_data(settings)


@pytest.mark.parametrize("channels", [1, 4])
def test_only_8_bit_rgb_images_can_be_shrunk(channels: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A JPEG would lose precision, and all channels but three."""
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            Path("d", split, name).mkdir(parents=True)
            Path("d", split, name, "0.tif").write_bytes(tiff(pixels(channels)))
    with pytest.raises(SystemExit, match="2"):
        main(["data=folder", "data.root=d", "--to", "webdataset", "--out", "out", "--size", "8"])
    assert f"{channels} channel{'s' if channels > 1 else ''} of uint16. Remove --size" in capsys.readouterr().err
    assert not Path("out").exists()


def test_formats_that_dali_does_not_decode_become_jpeg(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        Path(f"d/train/cat{number % 2}").mkdir(parents=True, exist_ok=True)
        photo = Image.new("RGB", (40, 30), (60 * number, 90, 120))
        for ending in ("gif", "avif", "tga", "png"):
            photo.save(f"d/train/cat{number % 2}/{number}.{ending}")
    Path("d/train/cat0/0.png").write_bytes(Path("d/train/cat0/0.gif").read_bytes())  # by its content, not its name
    Path("d/train/cat0/0.gif").unlink()
    command = ["data=folder", "data.root=d", "data.val_fraction=0.25", "--to", "folder", "--out", "out"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "12 images become JPEG\n" in out
    found = parse_data({"source": "folder", "root": "out"}).load()
    assert f"train: {len(found.train)} images\nval: {len(found.val)} images\n" in out
    assert len(found.train) + len(found.val) == 15
    assert Counter(Path(str(file)).suffix for file in found.train.files + found.val.files) == {".jpg": 12, ".png": 3}
    Path("d/train/cat0/0.psd").write_bytes(b"8BPS" + bytes(60))
    Image.new("I", (40, 30), 99).save("d/train/cat0/0.tiff")  # of 99, or of billions
    with pytest.raises(SystemExit):
        main([*command[:-1], "other"])
    error = capsys.readouterr().err
    assert "0.psd is not an image that DALI decodes" in error
    assert "0.tiff is a TIFF variant that DALI does not decode (mode I)" in error
