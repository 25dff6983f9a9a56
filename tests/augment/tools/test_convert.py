"""python -m augment convert: what it prints, what it refuses, and that processes write the same as one."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from augment.data.convert import conversion
from augment.data.sources import parse_data
from augment.tools.convert import main

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.slow
@pytest.mark.long
def test_several_processes_write_the_same_as_one(
    sample_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_WORTHWHILE", 1e-9)
    for jobs in ("1", "2"):
        given = ["data=sample", f"data.dir={sample_set}", "--to", "tfrecord", "--out", str(tmp_path / jobs)]
        main([*given, "--shard-mb", "1", "--jobs", jobs])
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / jobs).glob("*-of-*")} for jobs in "12")
    assert len(one) > 4
    assert one == two


def test_an_interrupted_conversion_explains_how_to_resume(
    sample_set: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[main.__module__], "convert", stopped)
    with pytest.raises(SystemExit) as caught:
        main(["data=sample", f"data.dir={sample_set}", "--to", "tfrecord", "--out", "out"])
    assert caught.value.code == 130
    assert "stopped: the same command resumes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=sample", "--out", "x"], "--to: missing. Allowed: folder, webdataset, tfrecord, recordio."),
        (["data=sample", "--to", "tfrecords"], "unknown name 'tfrecords'. Did you mean 'tfrecord'?"),
        (["data=sample", "--to", "folder"], "--out: missing."),
        (["--to", "folder", "--out", "x"], "data: missing. Allowed: data=folder data.root=DIR, or another source."),
        (["data=folder", "--to", "folder", "--out", "x"], "data.root: missing"),
        (["data=sample", "--size", "0"], "--size: '0' is not allowed. Allowed: a whole number from 1 to 65,500"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("to", "first", "second"),
    [
        (
            "folder",
            ["train: 2 images", "val: 1 image"],
            ["train: 2 images, 2 of them kept from before", "val: 1 image, 1 of them kept from before"],
        ),
        (
            "tfrecord",
            ["train: 2 images in 1 shard", "val: 1 image in 1 shard"],
            [
                "train: 2 images in 1 shard, 1 of them kept from before",
                "val: 1 image in 1 shard, 1 of them kept from before",
            ],
        ),
    ],
)
def test_written_images_are_counted(
    to: str, first: list[str], second: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("train/a/1.png", "train/b/2.png", "val/a/3.png"):
        (tmp_path / file).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8), (len(file), ord(file[-5]), 0)).save(tmp_path / file)
    for expected in (first, second):
        assert main(["data=folder", f"data.root={tmp_path}", "--to", to, "--out", str(tmp_path / "out")]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == expected


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
    assert "12 images become JPEG: 4 .avif, 4 .tga, 3 .gif, 1 .png" in capsys.readouterr().out
    found = parse_data({"source": "folder", "root": "out"}).load()
    assert (len(found.train), len(found.val)) == (11, 4)
    assert Counter(Path(str(file)).suffix for file in found.train.files + found.val.files) == {".jpg": 12, ".png": 3}
    Path("d/train/cat0/0.psd").write_bytes(b"8BPS" + bytes(60))
    with pytest.raises(SystemExit):
        main([*command[:-1], "other"])
    assert "0.psd is a Photoshop file, which DALI does not decode" in capsys.readouterr().err
