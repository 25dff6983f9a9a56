"""Class folders with difficult files in them: what cannot be used is named before the first batch, the rest is used."""

import os
import struct
import zlib
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import draw_photo
from PIL import Image
from runs import read_metrics

from augment.cli.parser import USAGE
from trainer.cli.main import main
from trainer.cli.single_run import train

pytestmark = pytest.mark.faults


def encoded(format: str, mode: str = "RGB", width: int = 64, height: int = 48, **options: Any) -> bytes:
    """Return an encoded photo."""
    stream = BytesIO()
    Image.fromarray(draw_photo(width, height, 5)).convert(mode).save(stream, format, **options)
    return stream.getvalue()


def png_of_16_bits() -> bytes:
    """Return a gray PNG with 16 bits a channel."""
    stream = BytesIO()
    Image.fromarray(np.linspace(0, 65535, 64 * 48).reshape(48, 64).astype(np.uint16)).save(stream, "PNG")
    return stream.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """Return a small PNG that claims to be large."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(bytes((width // 8 + 1) * 100)), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks.items()
    )


def with_exif(jpeg: bytes, exif: bytes) -> bytes:
    """Return a JPEG with an EXIF block."""
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif + jpeg[2:]


JPEG = encoded("JPEG", quality=90)

# What can be used: whatever its name says, and however unusual it is.
GOOD = {
    "cmyk.jpg": encoded("JPEG", "CMYK"),
    "gray.jpg": encoded("JPEG", "L"),
    "progressive.jpg": encoded("JPEG", progressive=True),
    "sixteen_bits.png": png_of_16_bits(),
    "palette.png": encoded("PNG", "P", transparency=0),
    "rgba.png": encoded("PNG", "RGBA"),
    "png_named.jpg": encoded("PNG"),
    "webp_named.jpg": encoded("WEBP"),
    "tiny.jpg": encoded("JPEG", width=1, height=1),
    "thin.jpg": encoded("JPEG", width=3000, height=2),
    "trailing.jpg": JPEG + np.random.default_rng(0).bytes(4096),
    "exif.jpg": with_exif(JPEG, b"MM\0*\xff\xff\xff\xff damaged"),
    "photo.bmp": encoded("BMP"),
    "photo.tiff": encoded("TIFF"),
    "photo.jp2": encoded("JPEG2000"),
    "ünïcödé_鳥_🐦.jpg": JPEG,
    "UPPERCASE.JPEG": JPEG,
}
BAD = {
    "empty.jpg": b"",
    "page.jpg": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "header.jpg": JPEG[:100],
    "half.jpg": JPEG[: len(JPEG) // 2],
    "without_end.jpg": JPEG[:-2],
    "half.png": encoded("PNG")[:1500],
    "gif_named.jpg": encoded("GIF"),
    "bomb.png": png_that_claims(20_000, 20_000),
}
HIDDEN = {"._side.jpg": b"\0\x05\x16\x07\0\x02\0\0Mac OS X        ", ".DS_Store": b"\0\0\0\1Bud1"}
PIPE = "pipe.jpg"


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two class folders of plain photos, all different, the first of which holds all of the above, too."""
    monkeypatch.chdir(tmp_path)
    seeds = count()
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for seed in islice(seeds, 4):
                Image.fromarray(draw_photo(64, 48, seed)).save(folder / f"{seed}.jpg")
    folder = tmp_path / "data" / "train" / "cat"
    for name, content in (GOOD | BAD | HIDDEN).items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / PIPE)
    return folder


GIVEN = [
    "+aug=imagenette", "data=folder", "data.root=data", "aug.size=32", "fit.batch_size=5", "fit.epochs=1",
    "fit.device=cpu", "fit.threads=1",
]  # fmt: skip


def named(text: str, folder: Path) -> set[str]:
    """Return the names of the files of a folder that a text names."""
    return {file.name for file in folder.iterdir() if f"/{file.name} " in text}


def test_without_skip_bad_a_run_ends_before_the_first_batch_with_the_full_list(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(GIVEN)
    assert stopped.value.code == USAGE
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert err.startswith(f"error: data: {len(BAD) + 1} of {len(GOOD) + len(BAD) + 9} train images cannot be used:\n")
    assert named(err, zoo) == {*BAD, PIPE}
    assert not list(Path().glob("outputs/*/*/last.pt"))
    assert not list(Path().glob("outputs/*/*/summary.json"))


def test_with_skip_bad_a_run_ends_well_and_its_log_names_each_bad_file(zoo: Path) -> None:
    summary = train(*GIVEN, "data.skip_bad=true", folder="run")
    assert (summary.status, summary.epochs) == ("finished", 1)
    assert len(read_metrics(Path("run"))) == 1
    assert named(Path("run/trainer.log").read_text(), zoo) == {*BAD, PIPE}
