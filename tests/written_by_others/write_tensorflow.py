"""Files that TensorFlow writes: pip install tensorflow-cpu pillow."""

import tensorflow as tf
from drawn import HERE, NAMES, TARGETS, encoded

OUT = HERE / "tensorflow"


def by_bytes(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=list(values)))


def by_ints(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))


def by_floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=list(values)))


def write(name, examples, options=None):
    with tf.io.TFRecordWriter(str(OUT / name), options=options) as writer:
        for features in examples:
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def imagenet(number, name, content):
    """As the files that are made of ImageNet's archives have it: classes from 1, and much that is not asked for."""
    return {
        "image/height": by_ints(32),
        "image/width": by_ints(32),
        "image/colorspace": by_bytes(b"RGB"),
        "image/channels": by_ints(3),
        "image/class/label": by_ints(TARGETS[number] + 1),
        "image/class/synset": by_bytes(b"n0144076%d" % TARGETS[number]),
        "image/class/text": by_bytes(NAMES[TARGETS[number]].encode()),
        "image/object/bbox/xmin": by_floats(0.25, 0.5),
        "image/object/number": by_ints(),
        "image/format": by_bytes(b"JPEG"),
        "image/filename": by_bytes(name.encode()),
        "image/encoded": by_bytes(content),
    }


def main():
    OUT.mkdir(exist_ok=True)
    pictures = encoded()
    rows = [imagenet(number, *picture) for number, picture in enumerate(pictures)]
    write("train-00000-of-00002", rows[:4])
    write("train-00001-of-00002", rows[4:])
    write("gzip.tfrecord", rows[:2], "GZIP")
    write(
        "tutorial.tfrecords",
        [{"image_raw": by_bytes(content), "label": by_ints(target), "depth": by_ints(3), "weight": by_floats(0.5)}
         for (_, content), target in zip(pictures, TARGETS)],
    )  # fmt: skip
    several = [(0, 2), (1,), (), (0, 1, 2), (2,), (0,)]
    write(
        "several.tfrecord",
        [{"image": by_bytes(content), "labels": by_ints(*labels)} for (_, content), labels in zip(pictures, several)],
    )
    write("floats.tfrecord", [{"image": by_bytes(pictures[0][1]), "label": by_floats(1.0)}])


if __name__ == "__main__":
    main()
