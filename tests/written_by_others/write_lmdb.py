"""Caffe's databases, by the protobuf runtime and py-lmdb: pip install lmdb protobuf pillow.

Caffe itself cannot be installed any more. Its message Datum is declared here, as its caffe.proto has it, and keys and
layouts are those of its tool convert_imageset.
"""

import shutil

import lmdb
from drawn import HERE, NAMES, TARGETS, draw, encoded
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

OUT = HERE / "lmdb"


def datum_class():
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="datum.proto", package="caffe", syntax="proto2")
    message = file.message_type.add(name="Datum")
    optional, repeated = kind.LABEL_OPTIONAL, kind.LABEL_REPEATED
    for number, (name, of, label) in enumerate([
        ("channels", kind.TYPE_INT32, optional), ("height", kind.TYPE_INT32, optional),
        ("width", kind.TYPE_INT32, optional), ("data", kind.TYPE_BYTES, optional),
        ("label", kind.TYPE_INT32, optional), ("float_data", kind.TYPE_FLOAT, repeated),
        ("encoded", kind.TYPE_BOOL, optional),
    ], start=1):  # fmt: skip
        message.field.add(name=name, number=number, type=of, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


def write(name, datums):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    with lmdb.open(str(folder), map_size=2**24) as base, base.begin(write=True) as transaction:
        for number, datum in enumerate(datums):
            key = f"{number:08d}_{NAMES[TARGETS[number]]}/{number}.png"
            transaction.put(key.encode(), datum.SerializeToString())
    (folder / "lock.mdb").unlink()


def main():
    OUT.mkdir(exist_ok=True)
    datum = datum_class()
    write("encoded", [
        datum(data=content, label=target, encoded=True) for (_, content), target in zip(encoded(), TARGETS)
    ])  # fmt: skip

    def pixels(number, planes):
        channels, height, width = planes.shape
        return datum(channels=channels, height=height, width=width, data=planes.tobytes(), label=TARGETS[number],
                     encoded=False)  # fmt: skip

    color = [pixels(number, draw(number)[..., ::-1].transpose(2, 0, 1)) for number in range(2)]
    write("raw", [*color, pixels(2, draw(2)[None, ..., 1])])  # the last one gray


if __name__ == "__main__":
    main()
