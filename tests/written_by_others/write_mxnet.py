"""Files that MXNet and its im2rec.py write.

Python 3.8: pip install mxnet==1.9.1 numpy==1.23.5 opencv-python-headless pillow.
"""

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import mxnet as mx
import numpy as np
from drawn import HERE, NAMES, ORIGINALS, TARGETS, draw, encoded
from mxnet.recordio import IRHeader, MXIndexedRecordIO, MXRecordIO, pack, pack_img

OUT = HERE / "mxnet"
MAGIC = struct.pack("<I", 0xCED7230A)


def indexed(name, records):
    writer = MXIndexedRecordIO(str(OUT / f"{name}.idx"), str(OUT / f"{name}.rec"), "w")
    for number, record in enumerate(records):
        writer.write_idx(number, record)
    writer.close()


def with_magic(png):
    """Put the number that parts begin with into a comment of a PNG, at each of four alignments and twice in a row."""
    comment = b"tEXtnote\0" + b"x".join([MAGIC] * 12) + MAGIC
    chunk = struct.pack(">I", len(comment) - 4) + comment + struct.pack(">I", zlib.crc32(comment))
    return png[:33] + chunk + png[33:]


def im2rec(folder):
    """The tool that most .rec files come from: a list of folders, then the records of the list."""
    for number, (name, content) in enumerate(encoded()):
        place = folder / "photos" / NAMES[TARGETS[number]]
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    tool = [sys.executable, str(Path(mx.__file__).parent / "tools" / "im2rec.py")]
    for arguments in (["--list", "--recursive", "--no-shuffle"], ["--pass-through"]):
        subprocess.run([*tool, *arguments, str(folder / "im2rec"), str(folder / "photos")], check=True)
    # The list of several labels is what --pack-label takes.
    lines = (folder / "im2rec.lst").read_text().splitlines()
    several = ["0\t1", "0", "1", "1\t2", "2", "0\t1\t2"]
    split = [line.split("\t") for line in lines]
    rows = [f"{row[0]}\t{labels}\t{row[-1]}\n" for row, labels in zip(split, several)]
    (folder / "labels.lst").write_text("".join(rows))
    subprocess.run(
        [*tool, "--pass-through", "--pack-label", str(folder / "labels"), str(folder / "photos")], check=True
    )
    for name in ("im2rec", "labels"):
        for ending in ("lst", "rec", "idx"):
            (OUT / f"{name}.{ending}").write_bytes((folder / f"{name}.{ending}").read_bytes())


def main():
    OUT.mkdir(exist_ok=True)
    bgr = [draw(number)[..., ::-1] for number in range(6)]
    indexed("images", [
        pack_img(IRHeader(0, float(target), number, 0), pixels, quality=3, img_fmt=".png")
        for number, (target, pixels) in enumerate(zip(TARGETS, bgr))
    ])  # fmt: skip
    arrays = [[0, 2], [1], [2], [0, 1, 2], [1], [2]]
    indexed("arrays", [
        pack(IRHeader(0, np.array(labels, np.float32), number, 0), content)
        for number, (labels, (_, content)) in enumerate(zip(arrays, encoded()))
    ])  # fmt: skip
    writer = MXRecordIO(str(OUT / "magic.rec"), "w")  # without an index
    for number, target in enumerate(TARGETS):
        png = with_magic((ORIGINALS / f"{number}.png").read_bytes())
        writer.write(pack(IRHeader(0, target, number, 0), png + b"\0" * number))
    writer.close()
    with TemporaryDirectory() as folder:
        im2rec(Path(folder))


if __name__ == "__main__":
    main()
