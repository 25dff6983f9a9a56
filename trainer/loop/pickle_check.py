"""Check which values the pickle in a checkpoint would create, before PyTorch creates them.

With `weights_only`, `torch.load` calls only allowed functions. These functions can still take unlimited memory
and time: they create large values from small files, copy a shared value many times, or hash nested tuples.
"""

import pickletools
import re
from typing import IO, Any

from augment.support.untrusted_files import MAX_DEPTH

MAX_VALUES = 1_000_000  # resuming checks a checkpoint twice, and each check takes 5 s for this many values

# Functions that create values of any size from nothing, or kinds of tensors that no model has.
_MAKERS = re.compile(r"bytearray|\w*Tensor|(Unt|T)ypedStorage|_rebuild_(?!tensor|parameter|from_type)\w+")

# The pickle instructions of checkpoints. Instructions in the first three sets create a value. Instructions in the
# mappings take values from the stack: the given number of values, or with None all values since the mark.
_CONSTANTS = {"NONE", "NEWFALSE", "NEWTRUE", "BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1"}
_CONTAINERS = {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"}
_TEXTS = {"BINUNICODE", "SHORT_BINSTRING"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
_ITEMS = {"APPEND": 1, "APPENDS": None}
_PAIRS = {"SETITEM": 2, "SETITEMS": None}
_CALLS = {"REDUCE": 1, "NEWOBJ": 1, "BUILD": 1, "BINPERSID": 1}
_TAKING = _TUPLES | _ITEMS | _PAIRS | _CALLS

# Bytes per element of the types of storages.
_BYTES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "ComplexDouble": 16, "ComplexFloat": 8}
_BYTES |= {"Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}

_LARGEST = 2**40  # sizes are counted up to this limit, because nested lists can grow exponentially


class ForeignTypeError(Exception):
    """A pickle uses a type, a function or an instruction that checkpoints do not use, or has too many values."""


class _Value:
    """A value that a pickle creates.

    Attributes:
        size: number of values in it.
        depth: how deeply its tuples are nested.
        items: the items of a tuple.
        given: the number, text or function name in the instruction.
    """

    __slots__ = ("depth", "given", "items", "size")

    def __init__(self, items: list["_Value"], size: int = 1, depth: int = 0, given: Any = None) -> None:
        self.size, self.depth, self.items, self.given = size, depth, items, given
        if items:
            self.add(items)

    def add(self, items: list["_Value"]) -> None:
        for item in items:
            self.size += item.size
        self.size = min(_LARGEST, self.size)


def check_pickle(stream: IO[bytes]) -> set[tuple[str, int]]:
    """Check one pickle, and read it to its end.

    Returns:
        The key and the number of bytes of each storage that the pickle uses.

    Raises:
        ForeignTypeError: the pickle is too large, or uses something that checkpoints do not use.
        ValueError: the pickle is damaged.
        LookupError: the pickle is damaged.
    """
    stack: list[_Value] = []
    below: list[list[_Value]] = []  # the stack under each mark
    memo: dict[object, _Value] = {}
    storages: set[tuple[str, int]] = set()
    made = used = 0  # numbers of created values, and of values in arguments and keys
    for instruction, given, _ in pickletools.genops(stream):
        name = instruction.name
        if name in ("PROTO", "STOP"):
            continue
        if name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[given] = stack[-1]
        elif name not in _TAKING:
            stack.append(memo[given] if name in ("BINGET", "LONG_BINGET") else _value(name, given))
            made += 1
        elif (count := _TAKING[name]) is None:
            items, stack = stack, below.pop()
            used += _take(name, items, stack)
        else:
            items = stack[-count:]
            del stack[-count:]
            used += _take(name, items, stack)
            if name == "BINPERSID":
                storages.add(_storage(items[0]))
        if made > MAX_VALUES or used > MAX_VALUES:
            raise ForeignTypeError(f"more than {MAX_VALUES:,} values")  # such as a pickled nn.Module
    return storages


def _storage(value: _Value) -> tuple[str, int]:
    """Return the key and the number of bytes of a storage, given the tuple that describes it."""
    _, kind, key, _, count, *_ = (item.given for item in value.items)
    return str(key), count * _BYTES[kind.removeprefix("torch ").removesuffix("Storage")]


def _value(name: str, given: Any) -> _Value:
    """Return the value that an instruction creates from a number, a text or nothing."""
    if name in _TEXTS:
        return _Value([], 1 + len(given) // 8, given=given)
    if name in _CONSTANTS or (name == "GLOBAL" and not _MAKERS.fullmatch(re.split("[. ]", given)[-1])):
        return _Value([], given=given)
    if name not in _CONTAINERS:
        raise ForeignTypeError(given.replace(" ", ".") if name == "GLOBAL" else name)
    return _Value([])


def _take(name: str, items: list[_Value], stack: list[_Value]) -> int:
    """Simulate an instruction that takes values from the stack. Return how many values it copies or hashes."""
    if name in _ITEMS:
        stack[-1].add(items)
        return 0
    depth = max((item.depth for item in items), default=0)
    if name in _TUPLES:
        if depth >= MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        stack.append(_Value(items, depth=depth + 1))
    elif name == "BINPERSID":
        stack.append(_Value([]))
    elif name == "REDUCE":
        stack[-1] = _Value(items, depth=depth)
    else:
        stack[-1].add(items)
    if name in _PAIRS:
        items = items[::2]
    return 0 if name in _TUPLES else sum(item.size for item in items)
