"""Shards that webdataset and GNU tar write: pip install webdataset pillow."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from drawn import HERE, NAMES, TARGETS, draw, encoded
from PIL import Image
from webdataset import ShardWriter, TarWriter

OUT = HERE / "webdataset"


def write(name, samples):
    with TarWriter(str(OUT / name), mtime=0) as writer:
        for sample in samples:
            writer.write(sample)


def main():
    OUT.mkdir(exist_ok=True)
    pictures = [(name.rpartition(".")[2], content) for name, content in encoded()]
    with ShardWriter(str(OUT / "numbers-%06d.tar"), maxcount=4, mtime=0, verbose=0) as writer:
        for number, ((ending, content), target) in enumerate(zip(pictures, TARGETS)):
            writer.write({"__key__": f"{number:06d}", ending: content, "cls": target})
    # Keys with folders, of which one has a dot; what else people put beside a picture; pictures encoded by the tool.
    write("json.tar", [
        {"__key__": f"photos.v1/part {number % 2}/{number:03d}", "PNG": Image.fromarray(draw(number)),
         "json": {"label": target, "class": {"name": NAMES[target]}, "size": 3.5, "tags": NAMES[: target + 1]}}
        for number, target in enumerate(TARGETS[:4])
    ])  # fmt: skip
    write("endings.tar", [
        {"__key__": f"x/{number}", "rgb.png" if ending == "png" else "rgb.jpeg": content,
         "class.txt": NAMES[target].encode(), "txt": f"a small {NAMES[target]}"}
        for number, ((ending, content), target) in enumerate(zip(pictures[:3], TARGETS))
    ])  # fmt: skip
    # A key with a dot of its own, which webdataset itself takes for the beginning of the ending.
    write("dots.tar", [
        {"__key__": f"photo.{number}", ending: content, "cls": target}
        for number, ((ending, content), target) in enumerate(zip(pictures[:3], TARGETS))
    ])  # fmt: skip
    with TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        folder.mkdir()
        for number, ((ending, content), target) in enumerate(zip(pictures[:3], TARGETS)):
            (folder / f"{number}.{ending}").write_bytes(content)
            (folder / f"{number}.cls").write_text(f"{NAMES[target]}\n")
        tar = ["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-C", place, "-cf"]
        subprocess.run([*tar, str(OUT / "gnu.tar"), "./photos"], check=True)
        subprocess.run([*tar, str(OUT / "gnu.tar.gz"), "-z", "./photos"], check=True)


if __name__ == "__main__":
    main()
