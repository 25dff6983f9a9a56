"""The messages that hold images in files: tf.train.Example and Caffe's Datum.

Sources: tensorflow/core/example/example.proto and feature.proto; BVLC/caffe/src/caffe/proto/caffe.proto.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

# The fields of each message: name, number and type; several values are "repeated".
_MESSAGES = {
    "BytesList": "value 1 bytes repeated",
    "FloatList": "value 1 float repeated",
    "Int64List": "value 1 int64 repeated",
    "Feature": "bytes_list 1 BytesList, float_list 2 FloatList, int64_list 3 Int64List",
    "FeatureEntry": "key 1 string, value 2 Feature",  # of a map, which is the same in a file
    "Features": "feature 1 FeatureEntry repeated",
    "Example": "features 1 Features",
    "Datum": "channels 1 int32, height 2 int32, width 3 int32, data 4 bytes, label 5 int32, "
    "float_data 6 float repeated, encoded 7 bool",
}


def _declare() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="images.proto", package="images", syntax="proto2")
    for name_of, fields in _MESSAGES.items():
        declared = file.message_type.add(name=name_of)
        for field, number, kind, *repeated in map(str.split, fields.split(", ")):
            added = declared.field.add(name=field, number=int(number), label=3 if repeated else 1)
            if kind in _MESSAGES:
                added.type, added.type_name = added.TYPE_MESSAGE, f".images.{kind}"
            else:
                added.type = added.Type.Value(f"TYPE_{kind.upper()}")
                added.options.packed = bool(repeated) and kind != "bytes"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _declare()

Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("images.Example"))
Datum: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("images.Datum"))

# What their `FromString` raises.
DecodeError: Any = message.DecodeError
