"""The message that holds an image in a file: Caffe's Datum.

Source: BVLC/caffe/src/caffe/proto/caffe.proto.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

# Name, number and type of each field; several values are "repeated".
_DATUM = (
    "channels 1 int32, height 2 int32, width 3 int32, data 4 bytes, label 5 int32, float_data 6 float repeated, "
    "encoded 7 bool"
)


def _declare() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="images.proto", package="images", syntax="proto2")
    declared = file.message_type.add(name="Datum")
    for field, number, kind, *repeated in map(str.split, _DATUM.split(", ")):
        added = declared.field.add(name=field, number=int(number), label=3 if repeated else 1)
        added.type = added.Type.Value(f"TYPE_{kind.upper()}")
        added.options.packed = bool(repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


Datum: Any = message_factory.GetMessageClass(_declare().FindMessageTypeByName("images.Datum"))

# What its `FromString` raises.
DecodeError: Any = message.DecodeError
