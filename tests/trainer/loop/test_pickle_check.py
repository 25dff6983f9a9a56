"""Pickles that would take unlimited memory or time are rejected before PyTorch builds their values."""

import io
import pickle
from collections import OrderedDict
from typing import Any

import pytest

from augment.support.untrusted_files import MAX_DEPTH
from trainer.loop.pickle_check import ForeignTypeError, check_pickle


def check(value: Any) -> None:
    check_pickle(io.BytesIO(pickle.dumps(value, protocol=2)))


def nested(levels: int) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(levels):
        value = (value,)
    return value


def test_values_of_checkpoints_are_accepted() -> None:
    check({"epoch": 3, "state": OrderedDict(lr=0.1, betas=(0.9, 0.99)), "names": ["a", "b"], 5: None})
    check(nested(MAX_DEPTH - 1))


def test_deeply_nested_tuples_are_rejected() -> None:
    with pytest.raises(ValueError, match="levels deep"):
        check(nested(MAX_DEPTH + 1))


def test_a_key_that_shares_tuples_is_rejected() -> None:
    """Its hash would visit 2 ** 40 values."""
    key: tuple[Any, ...] = ()
    for _ in range(40):
        key = (key, key)
    pickled = b"\x80\x02}" + pickle.dumps(key, protocol=2)[2:-1] + b"K\x01s."  # of {key: 1}, which would hash the key
    with pytest.raises(ForeignTypeError, match="values"):
        check_pickle(io.BytesIO(pickled))


def test_too_many_values_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.loop.pickle_check.MAX_VALUES", 1000)
    check([0.5] * 900)
    with pytest.raises(ForeignTypeError, match="values"):
        check([0.5] * 1001)


def test_functions_that_create_values_of_any_size_are_rejected() -> None:
    with pytest.raises(ForeignTypeError, match="bytearray"):
        check(bytearray(b"data"))
