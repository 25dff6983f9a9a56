"""The journal of a search: Optuna's records, one per line, checked when they are read.

A stranger may have written the records. Optuna's own backend follows links and trusts every record, and its locks
remain after a process was killed.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution, json_to_distribution
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import TrialState

from augment.support.untrusted_files import MAX_BYTES, locked, open_regular, parse_json
from trainer.run.config.sweep_settings import MAX_TRIALS

# Limits Optuna's work, because a crafted journal could take hours. For each parameter, Optuna searches all earlier
# trials. For each record about a trial, it copies the trial's data.
_MAX_LOOKUPS = 10**7
_MAX_NAME = 4096

JOB = "job"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME


def _is_index(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_TRIALS


def _is_time(value: object) -> bool:
    with suppress(ValueError, OverflowError):
        return isinstance(value, str) and bool(datetime.fromisoformat(value).astimezone())
    return False


def _is_score(value: object) -> bool:
    return isinstance(value, list) and len(value) == 1 and _is_number(value[0])


def _is_study_attribute(value: object) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("base", {}), dict)


def _is_trial_attribute(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {JOB} and _is_name(value[JOB])


# The operations that a search writes, by Optuna's numbers, and a check for each field of their records.
_FIELDS: Mapping[int, Mapping[str, Callable[[Any], bool]]] = {
    0: {"study_name": _is_name, "directions": lambda v: v in ([1], [2])},
    2: {"study_id": lambda v: v == 0, "user_attr": _is_study_attribute},
    4: {"study_id": lambda v: v == 0, "datetime_start": _is_time},
    5: {"trial_id": _is_index, "param_name": _is_name, "param_value_internal": _is_number, "distribution": _is_name},
    6: {"trial_id": _is_index, "state": lambda v: v in (0, 1, 2, 3), "values": lambda v: v is None or _is_score(v)},
    7: {"trial_id": _is_index, "step": lambda v: type(v) is int, "intermediate_value": _is_number},
    8: {"trial_id": _is_index, "user_attr": _is_trial_attribute},
    9: {"trial_id": _is_index, "system_attr": lambda v: isinstance(v, dict)},
}


@lru_cache(maxsize=1000)
def _distribution(text: str) -> BaseDistribution:
    """Parse a distribution of plain values.

    Raises:
        ValueError: it is not a distribution of plain values.
    """
    found: Any = json_to_distribution(text)
    plain = found.choices if isinstance(found, CategoricalDistribution) else (found.low, found.high)
    if not all(value is None or isinstance(value, str | int | float) for value in plain):
        raise ValueError("a choice is not a plain value")
    return cast(BaseDistribution, found)


class Journal(BaseJournalBackend):
    """The records of a search's journal, which several processes append to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start()

    def _start(self) -> None:
        self._count = self._offset = self._trials = self._lookups = 0
        self._first: dict[str, int] = {}  # the first trial with each parameter
        self._about = Counter[tuple[object, object]]()  # number of records about each trial, by operation

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the records, starting at a number.

        Raises:
            ValueError: a search does not write such a record, or there are too many.
        """
        if log_number_from != self._count:
            self._start()
        with open(open_regular(self._file), "rb") as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MAX_BYTES:
                raise ValueError(f"{size:,} bytes, more than {MAX_BYTES:,}")
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):  # another process is writing this line
                    return
                record = self._checked(parse_json(line))
                self._offset += len(line)
                self._count += 1
                if self._count > log_number_from:
                    yield record

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records. First remove the incomplete line that a killed process may have left."""
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
        with locked(self._file) as opened:
            size = opened.seek(0, os.SEEK_END)
            if size and os.pread(opened.fileno(), 1, size - 1) != b"\n":
                opened.seek(0)
                opened.truncate((opened.read() or b"").rfind(b"\n") + 1)
                opened.seek(0, os.SEEK_END)
            rest = memoryview(text.encode())
            while rest:
                rest = rest[opened.write(rest) or 0 :]
            os.fsync(opened.fileno())

    def _checked(self, record: Any) -> dict[str, Any]:
        """Return a record. Raise ValueError if no search writes it, or so many records."""
        invalid = f"record {self._count + 1:,} does not come from a search"
        operation = record.get("op_code") if isinstance(record, dict) else None
        fields = _FIELDS.get(operation, {}) if type(operation) is int else {}
        if not fields or not _is_name(record.get("worker_id")):
            raise ValueError(invalid)
        for name, fits in fields.items():
            if name not in record or not fits(record[name]):
                raise ValueError(f"{invalid}: {name}")
        owner = record.get("trial_id")
        self._about[operation, owner] += 1
        self._lookups += self._about[operation, owner] // 16
        if operation == 4:
            if record.keys() - {"op_code", "worker_id", *fields}:
                raise ValueError(invalid)
            self._trials += 1
        elif operation == 5:
            self._check_parameter(record)
        elif operation == 6 and record["state"] > 0:
            complete = record["state"] == TrialState.COMPLETE.value
            if not _is_time(record.get("datetime_complete")) or (complete and record["values"] is None):
                raise ValueError(f"{invalid}: values")
        if self._trials > MAX_TRIALS or self._lookups > _MAX_LOOKUPS:
            raise ValueError(f"more than {MAX_TRIALS:,} trials, or too many records for its number of trials")
        return dict(record)

    def _check_parameter(self, record: Mapping[str, Any]) -> None:
        """Check that a parameter's value is in its range, and count the trials that Optuna searches for it."""
        name, value = record["param_name"], record["param_value_internal"]
        values: Any = _distribution(record["distribution"])
        if isinstance(values, CategoricalDistribution):
            fits = value in range(len(values.choices))
        else:
            fits = values.low <= value <= values.high and math.isfinite(values.high - values.low)
        if not fits:
            raise ValueError(f"{name[:40]} is not in its range")
        first = self._first.get(name, self._trials)
        self._lookups += first
        self._first[name] = min(first, record["trial_id"])
