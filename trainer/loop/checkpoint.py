"""Checkpoint files. They are written completely or not at all, and reading them cannot run code."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import MISSING, dataclass, field, fields, replace
from io import BytesIO
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypeVar

from augment.params.pixel_format import PixelFormat, parse_format
from augment.support.errors import UserError, first_line
from augment.support.files import atomic_path
from augment.support.lazy_torch import Tensor, nn, torch
from augment.support.process import host_memory
from augment.support.untrusted_files import MAX_DEPTH, damage_errors, explained_damage, regular
from trainer.loop.pickle_check import MAX_VALUES, ForeignTypeError, check_pickle

_BROKEN = damage_errors(OSError, zipfile.BadZipFile, zlib.error)

# Limits that no model reaches. Values that are not in tensors are slow to read.
MAX_PICKLE = 2**23  # bytes of values that are not in tensors
_MAX_GROUPS = 10_000  # parameter groups in an optimizer

# The first bytes of files that PyTorch before version 1.6 wrote.
_OLD = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")

_OLD_PICKLES = 5  # pickles in such a file

_REMEDY = "Restore it, or use another file."


class DamagedError(UserError):
    """A checkpoint is missing, truncated or damaged."""


def is_whole(path: Path) -> bool:
    """Return whether a file matches its checksums, which PyTorch does not verify."""
    with suppress(UserError, *_BROKEN), _open(path) as archive:
        return archive.testzip() is None
    return False


def read_plain(path: Path, device: torch.device | None = None, *, old: bool = False) -> Any:
    """Read a file from `torch.save` that contains only plain values and tensors.

    Args:
        path: the file.
        device: the device of the tensors. None: the CPU.
        old: whether to accept files from PyTorch before version 1.6, which have no checksums.

    Raises:
        DamagedError: the file is truncated, or is not a checkpoint.
        UserError: the file is compressed or too large, or contains other objects.
    """
    try:
        with open(path, "rb") as stream:
            is_old = old and stream.read(len(_OLD)) == _OLD
            stream.seek(0)
            for _ in range(_OLD_PICKLES if is_old else 0):
                check_pickle(stream)
        if not is_old:
            with _open(path) as archive:
                (name,) = filter(_is_pickle, archive.namelist())
                # PyTorch before 2.10 would read beyond a storage that is too short, into other memory.
                if archive.testzip() is not None or any(
                    archive.getinfo(f"{name[:-8]}data/{key}").file_size != size
                    for key, size in check_pickle(BytesIO(archive.read(name)))
                ):
                    raise zipfile.BadZipFile
    except ForeignTypeError as error:
        raise _foreign_types(path, f" ({error})") from error
    except _BROKEN as error:
        raise DamagedError(f"{path} is truncated, or is not a checkpoint. {_REMEDY}") from error
    try:
        return torch.load(path, map_location=device or "cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its message recommends loading the file without checks
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise _foreign_types(path, f" ({found[1]})" if found else "") from error
    except _BROKEN as error:
        raise UserError(f"{path} is truncated, or is not a checkpoint ({first_line(error)}). {_REMEDY}") from error


def _open(path: Path) -> zipfile.ZipFile:
    """Open an archive from `torch.save`.

    Raises:
        BadZipFile: the file is truncated, or is not an archive.
        UserError: PyTorch cannot have written the archive.
    """
    start, length, end = _directory(path)
    if path.stat().st_size > host_memory():  # a sparse file takes no disk space, but reading it takes hours
        reason = "it is larger than the memory of this machine"
    elif start + length != end:  # otherwise, Python could find another directory
        reason = "it contains more than one archive"
    elif length > MAX_PICKLE:  # Python takes a minute to read 100 MB
        reason = f"its list of tensors has more than {MAX_PICKLE:,} bytes"
    else:
        archive = zipfile.ZipFile(path)
        if not (reason := _why_foreign(archive.infolist(), end)):
            return archive
        archive.close()
    raise UserError(f"{path} is not a checkpoint: {reason}. {_REMEDY}")


def _why_foreign(entries: Sequence[zipfile.ZipInfo], size: int) -> str:
    """Return why PyTorch cannot have written the entries of an archive, or "" if PyTorch may have written them."""
    if len({entry.filename.lower() for entry in entries}) < len(entries):  # PyTorch ignores case
        return "it contains a name twice"
    # For some methods of compression, Python ignores the size in the directory, and unpacks everything.
    if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > size:
        return "it is compressed, but PyTorch never compresses checkpoints"
    if any(entry.file_size > MAX_PICKLE for entry in entries if _is_pickle(entry.filename)):
        return f"it contains more than {MAX_PICKLE:,} bytes of values that are not in tensors"
    return ""


def _is_pickle(name: str) -> bool:
    return name.lower().endswith("/data.pkl")  # PyTorch ignores case


def _directory(path: Path) -> tuple[int, int, int]:
    """Return where the directory of an archive starts, how long it is, and where the records after it start.

    Raises:
        BadZipFile: the file does not end with these records, or they disagree. Python's zipfile also accepts other
            files, such as an archive with a comment.
    """
    with open(path, "rb") as stream:
        at = stream.seek(-98, os.SEEK_END)
        wide, locator, end = (stream.read(size) for size in (56, 20, 22))
    is_wide = locator[:4] == b"PK\6\7"
    found = is_wide and wide[:4] == b"PK\6\6" and int.from_bytes(locator[8:16], "little") == at
    if end[:4] != b"PK\5\6" or end[20:] != bytes(2) or found != is_wide:
        raise zipfile.BadZipFile
    size, start = (wide[40:48], wide[48:]) if is_wide else (end[12:16], end[16:20])
    return int.from_bytes(start, "little"), int.from_bytes(size, "little"), at if is_wide else at + 76


def _foreign_types(path: Path, what: str) -> UserError:
    remedy = "Save only the model's state_dict(), or use another file."
    return UserError(f"{path} is not a checkpoint: it contains more than plain values and tensors{what}. {remedy}")


def check_tensors(tensors: Iterable[object], path: Path) -> None:
    """Check that values are dense tensors, and that the file contains all their elements.

    Raises:
        UserError: a value is not a dense tensor, or is an expanded tensor, which repeats its elements.
    """
    for value in tensors:
        if not isinstance(value, torch.Tensor) or value.is_meta or value.is_quantized:
            raise _wrong_types(path)
        if value.layout is not torch.strided or value.nbytes > value.untyped_storage().nbytes():
            raise UserError(f"{path} contains a sparse or expanded tensor. Use another checkpoint.")


def _wrong_types(path: Path) -> UserError:
    return UserError(f"{path} contains values of the wrong type. Use another checkpoint.")


LAST, BEST = "last.pt", "best.pt"

# Version of the file format. Increase it when the classes below or the states inside them change.
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class FitState:
    """The content of last.pt: everything that a resumed fit needs to match an uninterrupted fit."""

    position: tuple[int, int]  # the epoch, and the number of its training batches that were fetched
    model: dict[str, Tensor]  # state of the trained model, without the fixed weights of LoRA
    optimizer: dict[str, Any]
    gradients: dict[str, Tensor]  # gradients that no step has used yet, by parameter name
    loader: dict[str, Any]
    callbacks: dict[str, dict[str, Any]]  # states by the keys from `trainer.loop.callback.with_keys`
    random: dict[str, Any]  # states of the random generators, see `random_state`
    # For each of the ranks 1, 2, ..., the states that differ from the states of rank 0: gradients, loader, random, and
    # callbacks with `per_rank` (`trainer.loop.callback.Callback`). Within a step, the model's buffers also differ.
    others: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """Number of ranks that trained."""
        return 1 + len(self.others)

    def check_ranks(self, ranks: int) -> None:
        """Check that a number of ranks can resume from this state.

        Raises:
            UserError: a different number of ranks saved the state between the batches of a step.
        """
        if self.gradients and self.position[1] and self.ranks != ranks:
            raise UserError(
                f"fit.gpus={ranks}, but the run stopped between the batches of a step (fit.accumulate), with "
                f"fit.gpus={self.ranks}. Resume with fit.gpus={self.ranks}."
            )

    def for_rank(self, rank: int) -> FitState:
        """Return the state for a rank. A rank that the saved run did not have gets the state of rank 0."""
        if not 0 < rank < self.ranks:
            return self
        own = dict(self.others[rank - 1])
        model, callbacks = self.model | own.pop("buffers"), self.callbacks | own.pop("callbacks")
        return replace(self, model=model, callbacks=callbacks, **own)


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """The content of best.pt: the validated model of the best epoch, and its scores."""

    model: dict[str, Tensor]
    row: dict[str, float]
    # The results for each validation image: the tensors of `trainer.tasks.metric.Samples` by attribute. None: the epoch
    # had no validation.
    samples: dict[str, Tensor] | None
    classes: tuple[str, ...]  # names of the classes, labels, numbers or keypoints
    task: str
    # For each label, or each class of a detector, the lowest probability with which predictions list it. Empty: the
    # task's default.
    thresholds: tuple[float, ...] = field(default_factory=tuple)
    # The pixel format of the images, see `PixelFormat.plain`, with the mean and std of the run. Empty: 8-bit RGB.
    pixels: dict[str, Any] = field(default_factory=dict)

    @property
    def pixel_format(self) -> PixelFormat:
        return parse_format(self.pixels or None, "pixels")


S = TypeVar("S", bound=FitState | BestModel)


log = logging.getLogger(__name__)


def save(state: FitState | BestModel, path: Path, *, keep: int = 0) -> None:
    """Write a state. Other processes see the old file until the new file is complete.

    `keep` is the number of older files to keep, as last.1.pt (the newest), last.2.pt and so on.
    """
    with atomic_path(path, durable=True) as part:
        with part.open("wb") as file:
            try:
                torch.save({"format": FORMAT, **vars(state)}, file)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError | KeyboardInterrupt):  # PyTorch raises its own error instead
                    raise error.__context__ from None
                raise
        for number in range(keep, 1, -1):
            if (newer := _older(path, number - 1)).is_file():
                os.replace(newer, _older(path, number))
        if keep and path.is_file():
            with atomic_path(_older(path, 1)) as second:
                try:
                    os.link(regular(path), second)
                except OSError:  # a file system without hard links
                    second.write_bytes(regular(path).read_bytes())


def load(path: Path, kind: type[S], device: torch.device | None = None) -> S:
    """Read a state, with its tensors on the device. None: the CPU.

    If last.pt is damaged, the newest undamaged older file is read instead, with a warning.

    Raises:
        UserError: the file is missing, or is not a checkpoint of this kind and format.
    """
    collects = gc.isenabled()
    gc.disable()  # otherwise Python searches the values of a large file for garbage again and again
    try:
        return _load(path, kind, device)
    except DamagedError:
        existing = takewhile(_is_unlinked, (_older(path, number) for number in count(1)))
        if kind is not FitState or (older := next(filter(is_whole, existing), None)) is None:
            raise
        state = _load(older, kind, device)
        log.warning("%s is missing or damaged. The older checkpoint %s is used instead.", path, older.name)
        return state
    finally:
        if collects:
            gc.enable()


def _older(path: Path, number: int) -> Path:
    return path.with_suffix(f".{number}{path.suffix}")


def _is_unlinked(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _load(path: Path, kind: type[S], device: torch.device | None) -> S:
    if not path.is_file():
        inside = sorted(p.name for p in path.parent.glob("*.pt")) if path.parent.is_dir() else []
        raise DamagedError(f"{path} does not exist. The folder contains {', '.join(inside) or 'no checkpoint'}.")
    state = read_plain(regular(path), device)
    if not isinstance(state, dict) or "model" not in state or not isinstance(state.get("format"), int | None):
        raise UserError(f"{path} is not the checkpoint of a run. Use another checkpoint.")
    found = state.pop("format", None)
    if found != FORMAT:
        raise UserError(
            f"{path} has format {found}, but this version of dali-trainer reads format {FORMAT}. Use the version that "
            "wrote it, or start a new run."
        )
    needed = {part.name for part in fields(kind) if part.default_factory is MISSING}
    if not needed <= state.keys() <= {part.name for part in fields(kind)}:
        raise UserError(f"{path} is not the {LAST if kind is FitState else BEST} of a run. Use another checkpoint.")
    _check_types(state, path)
    return kind(**state)


def _check_types(state: Mapping[str, Any], path: Path) -> None:
    """Check the types of all values, because an invalid file must not cause a traceback."""
    with explained_damage(path):
        check_tensors(_tensors_in(state), path)
        names, position = state.get("classes", ()), state.get("position", (0, 0))
        thresholds = state.get("thresholds", ())
        tensors = [state["model"], state.get("samples") or {}, state.get("gradients") or {}]
        others = [state.get(name, {}) for name in ("row", "optimizer", "loader", "callbacks", "random")]
        optimizer = state.get("optimizer")
        groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
        plain = (
            all(isinstance(kept, dict) for kept in (*tensors, *others, *state.get("others", ())))
            and (not groups or (isinstance(groups, list) and len(groups) <= _MAX_GROUPS))
            and isinstance(position, tuple)
            and len(position) == 2
            and all(isinstance(count, int) and 0 <= count < 2**31 for count in position)
            and isinstance(names, tuple | list)
            and all(isinstance(name, str) for name in (*names, state.get("task", ""), *state.get("row", {})))
            and all(isinstance(value, float) or _is_small(value) for value in state.get("row", {}).values())
            and isinstance(thresholds, tuple | list)
            and len(thresholds) in (0, len(names))
            and all(isinstance(value, int | float) and 0 <= value <= 1 for value in thresholds)
        )
        parse_format(state.get("pixels") or None, f"{path}: pixels")
    if not plain:
        raise _wrong_types(path)
    check_tensors((value for kept in tensors for value in kept.values()), path)


def _is_small(value: object) -> bool:
    """Return whether a value is an integer that a float can hold."""
    return isinstance(value, int) and abs(value) < 2**53


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in plain values. A shared value counts each time it occurs."""
    pending, found, tensor = [(value, 0)], 0, torch.Tensor  # each look-up in `torch` takes a microsecond
    kinds = (tensor, dict, list, tuple, set)
    while pending:
        one, depth = pending.pop()
        if isinstance(one, tensor):
            yield one
            continue
        inner = one.values() if isinstance(one, dict) else one
        found += len(inner)
        if found > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_VALUES:,} values, or {MAX_DEPTH} levels")
        pending += [(each, depth + 1) for each in inner if isinstance(each, kinds)]


def first_difference(saved: Mapping[str, Tensor], network: nn.Module) -> str:
    """Return the name of the first tensor that only one of a state and a network has, or whose shape differs.

    Empty: the state fits the network.
    """
    saved_shapes = {name: value.shape for name, value in saved.items()}
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    return next((name for name in (*shapes, *saved_shapes) if saved_shapes.get(name) != shapes.get(name)), "")


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of PyTorch's random generators on the CPU, and on the device if it is a GPU."""
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the states from `random_state`, even on another GPU."""
    # Generators read their states from host memory.
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"][0].cpu(), device)


def to_host(value: Any) -> Any:
    """Return a copy of plain values, with their tensors in host memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy(value)  # keeps attributes, such as `_metadata` of a module's state
        copied.update((key, to_host(one)) for key, one in value.items())
        return copied
    if isinstance(value, list | tuple):
        return type(value)(map(to_host, value))
    return deepcopy(value)
