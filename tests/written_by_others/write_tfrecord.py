"""A file that the package `tfrecord` writes, which does without TensorFlow: pip install tfrecord pillow."""

from drawn import HERE, NAMES, TARGETS, encoded
from tfrecord.tools.tfrecord2idx import create_index
from tfrecord.writer import TFRecordWriter

OUT = HERE / "tfrecord"


def main():
    OUT.mkdir(exist_ok=True)
    file = str(OUT / "train.tfrecord")
    writer = TFRecordWriter(file)
    for (_, content), target in zip(encoded(), TARGETS):
        name = NAMES[target].encode()
        writer.write({"image": (content, "byte"), "label": (target, "int"), "name": (name, "byte"),
                      "boxes": ([0.5, 1.5], "float")})  # fmt: skip
    writer.close()
    create_index(file, f"{file}.index")


if __name__ == "__main__":
    main()
