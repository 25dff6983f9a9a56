"""The journal of a search: records of Optuna, one per line, checked as they are read because a stranger may write them.

Optuna's own backend follows links, trusts every record, and its locks stay behind when a process is killed.
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

# Optuna looks for a parameter in all earlier trials, and copies what it knows of a trial for each record about it.
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


def _is_study_attribute(value: object) -> bool:
    if not isinstance(value, dict) or len(value) != 1 or not isinstance(value.get("base", {}), dict):
        return False
    metrics = value.get("metrics", [])
    return isinstance(metrics, list) and all(map(_is_name, metrics))


def _is_trial_attribute(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {JOB} and _is_name(value[JOB])


# The operations that a search writes, by Optuna's numbers, with the fields of each record.
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


def _is_score(value: object) -> bool:
    return isinstance(value, list) and len(value) == 1 and _is_number(value[0])


@lru_cache(maxsize=1000)
def _distribution(text: str) -> BaseDistribution:
    """Return a distribution of plain values; a ValueError says that it is none."""
    found: Any = json_to_distribution(text)
    plain = found.choices if isinstance(found, CategoricalDistribution) else (found.low, found.high)
    if not all(value is None or isinstance(value, str | int | float) for value in plain):
        raise ValueError("a choice is no plain value")
    return cast(BaseDistribution, found)


class Journal(BaseJournalBackend):
    """The records of a search's journal, which several processes append to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start()

    def _start(self) -> None:
        self._count = self._offset = self._trials = self._lookups = 0
        self._first: dict[str, int] = {}  # the first trial with a parameter
        self._about = Counter[tuple[object, object]]()  # records about a trial, or about the study

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the records from a number on.

        Raises:
            ValueError: one is not what a search writes, or there are too many.
        """
        if log_number_from != self._count:
            self._start()
        with open(open_regular(self._file), "rb") as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MAX_BYTES:
                raise ValueError(f"{size:,} bytes, more than {MAX_BYTES:,}")
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):  # another process is writing it
                    return
                record = self._checked(parse_json(line))
                self._offset += len(line)
                self._count += 1
                if self._count > log_number_from:
                    yield record

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records, after dropping half a line of a killed process."""
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
        operation = record.get("op_code") if isinstance(record, dict) else None
        fields = _FIELDS.get(operation, {}) if type(operation) is int else {}
        wrong = [name for name, fits in fields.items() if name not in record or not fits(record[name])]
        if not fields or wrong or not _is_name(record.get("worker_id")):
            raise ValueError(f"record {self._count + 1:,} is not what a search writes{wrong and f': {wrong[0]}'}")
        owner = record.get("trial_id")
        self._about[operation, owner] += 1
        self._lookups += self._about[operation, owner] // 16
        if operation == 4:
            if record.keys() - {"op_code", "worker_id", "study_id", "datetime_start"}:
                raise ValueError(f"record {self._count + 1:,} is not what a search writes")
            self._trials += 1
        elif operation == 5:
            self._check_parameter(**record)
        elif operation == 6 and record["state"] > 0:
            complete = record["state"] == TrialState.COMPLETE.value
            if not _is_time(record.get("datetime_complete")) or (complete and record["values"] is None):
                raise ValueError(f"record {self._count + 1:,} is not what a search writes: values")
        if self._trials > MAX_TRIALS or self._lookups > _MAX_LOOKUPS:
            raise ValueError(f"more than {MAX_TRIALS:,} trials, or more records than a search of so many writes")
        return dict(record)

    def _check_parameter(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: str, **_: object
    ) -> None:
        values: Any = _distribution(distribution)
        if isinstance(values, CategoricalDistribution):
            fits = param_value_internal in range(len(values.choices))
        else:
            fits = values.low <= param_value_internal <= values.high and math.isfinite(values.high - values.low)
        if not fits:
            raise ValueError(f"{param_name[:40]} is not in its range")
        first = self._first.get(param_name, self._trials)
        self._lookups += first
        self._first[param_name] = min(first, trial_id)
