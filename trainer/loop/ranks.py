"""Ranks: processes that train one model together, one per GPU, as torchrun starts them.

Each rank computes the gradients of its share of a batch. Once per step, the ranks add up all gradients as one flat
tensor, before callbacks see the gradients. So every rank takes the same step. Python objects and decisions are
exchanged through a second process group on the CPU, so that nothing waits for a GPU.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from threading import Timer
from time import sleep
from typing import Any, TypeVar

from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor, dist, torch
from augment.support.process import launched_ranks, local_rank
from augment.support.user_code import describe_raised

T = TypeVar("T")

log = logging.getLogger(__name__)

# Timeout of an exchange. Another rank may first check images for hours. If a rank dies, the exchange fails at once.
_EXCHANGE_TIMEOUT = timedelta(days=7)

# Keys in PyTorch's store: why a rank has ended, and how many exchanges and cancellations each rank has begun.
_REASON, _PROGRESS = "reason", "progress"

# Parts of the error messages with which PyTorch's libraries report that a process has ended.
_ENDED = ("onnection", "Socket closed", "Broken pipe", "remote process", "imed out", "timeout", "ncclRemoteError")

# Environment variables that a launcher sets, in addition to RANK and WORLD_SIZE.
_NEEDED = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

# Seconds until a process warns that it still waits for others to start.
_WARN_SECONDS = 30.0

# The ranks exchange values once per this many calls of `Ranks.agree`. The host waits some tenths of a millisecond for
# each exchange.
CALLS_PER_EXCHANGE = 8


class LostRankError(UserError):
    """Another rank has ended, so this rank cannot continue."""


class Ranks:
    """The ranks that train together, as this process sees them. A single process exchanges nothing.

    All ranks make the same exchanges in the same order. An exchange raises `LostRankError` if another rank has ended.

    Args:
        control: PyTorch's process group for objects and decisions. None: this process trains alone.
        store: PyTorch's store, which ranks use without waiting for each other. None: ranks that exchange in different
            orders are noticed only after a timeout.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    def __init__(self, control: Any = None, store: Any = None) -> None:
        self._control = control
        self._store = store
        self.rank = 0 if control is None else dist.get_rank()
        self.size = 1 if control is None else dist.get_world_size()
        self._calls: Counter[str] = Counter()
        self._begun = self._cancels = 0  # numbers of begun exchanges and of cancelled levels

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0. Only rank 0 writes, prints and tracks."""
        return self.rank == 0

    def add_up(self, tensors: "Iterable[Tensor]") -> None:
        """Replace tensors by their sums over the ranks, with one exchange per dtype. The host does not wait."""
        if self.size == 1:
            return
        for _, same in groupby(sorted(tensors, key=lambda tensor: str(tensor.dtype)), key=lambda tensor: tensor.dtype):
            values = [_flat(tensor) for tensor in same]
            sizes = [value.numel() for value in values]
            flat = values[0].new_empty(sum(sizes))
            parts = list(torch.split(flat, sizes))
            torch._foreach_copy_(parts, values)  # on a GPU, 10x as fast as torch.cat for many tensors
            self._exchange(partial(dist.all_reduce, flat))
            torch._foreach_copy_(values, parts)

    def copy_from_main(self, tensors: "Iterable[Tensor]") -> None:
        """Replace tensors by the tensors of rank 0, except for expanded ones, which cannot be written."""
        # Another rank may still check images, but the first exchange between GPUs has a short timeout.
        self.gather(None)
        for tensor in tensors if self.size > 1 else ():
            if tensor.untyped_storage().nbytes() >= tensor.nbytes:
                self._exchange(partial(dist.broadcast, _flat(tensor.detach()), src=0))

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._exchange(lambda: dist.all_gather_object(values, value, group=self._control))
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        return self.gather(value)[0]

    def agree(self, name: str, wish: bool) -> bool:
        """Return whether `wish` is true on any rank. All ranks get the same answer.

        The ranks exchange `wish` only once per `CALLS_PER_EXCHANGE` calls, so that the host rarely waits. Other calls
        return False, so pass `wish` again at the next call. A single process gets its own `wish` immediately.
        """
        if self.size == 1:
            return wish
        self._calls[name] += 1
        return self._calls[name] % CALLS_PER_EXCHANGE == 0 and any(self.gather(wish))

    def cancel(self, cancel: Exception, position: object) -> None:
        """Wait until all ranks leave the same level of the loop. Otherwise, they could hang, or train different models.

        Raises:
            UserError: another rank does not leave a level, or leaves a different level.
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return
        self._cancels += 1
        mine = type(cancel).__name__, position, self._begun
        if (other := self._exchange(self._await_cancels)) is None:
            other = next((rank for rank, theirs in enumerate(self.gather(mine)) if theirs != mine), None)
        if other is not None:
            raise UserError(
                f"{describe_raised(cancel).removesuffix('.')} was raised on rank {self.rank}, but not on rank {other} "
                'at the same time. Make the same decision on all ranks: use learner.ranks.agree("NAME", wish) in '
                "training batches, and learner.ranks.broadcast(value) elsewhere."
            )

    def _await_cancels(self) -> int | None:
        """Wait until all other ranks cancel, and return None. If a rank begins another exchange, return this rank."""
        others = [rank for rank in range(self.size) if rank != self.rank and self._store is not None]
        while others:
            try:
                begun, cancels = map(int, self._store.get(f"{_PROGRESS}/{others[-1]}").split())
            except RuntimeError:  # the process with the store was killed, so all ranks end
                break
            if cancels >= self._cancels:
                others.pop()
            elif begun >= self._begun:
                return others[-1]
            elif why := reported():
                raise LostRankError(why)
            else:
                sleep(0.005)
        return None

    def _exchange(self, work: Callable[[], T]) -> T:
        self._begun += 1
        if self._store is not None:
            with suppress(RuntimeError):  # the process that holds the store has ended
                self._store.set(f"{_PROGRESS}/{self.rank}", f"{self._begun} {self._cancels}")  # takes 3 microseconds
        try:
            return work()
        except RuntimeError as error:
            why = reported()
            if not why and not any(text in str(error) for text in _ENDED):
                raise UserError(f"the {self.size} ranks cannot exchange data: {_cause(error)}") from error
            raise LostRankError(why or f"one of the {self.size} ranks has ended.") from error


_alone = Ranks()
_joined: Ranks | None = None
_store: Any = None  # set by `join`


def report(message: str) -> bool:
    """Report to the other ranks why this rank ends. Return False if another rank reported first."""
    with suppress(RuntimeError, ValueError):  # the process that holds the store has ended
        return _store is None or _store.compare_set(_REASON, "", message).decode(errors="replace") == message
    return True


def reported() -> str:
    """Return the first reported reason why a rank has ended, or an empty string."""
    with suppress(RuntimeError, ValueError):
        if _store is not None and _store.check([_REASON]):
            return str(_store.get(_REASON).decode(errors="replace"))
    return ""


def current() -> Ranks:
    """Return the `Ranks` that this process joined through `join` or PyTorch, or a single rank if it joined none."""
    global _joined
    if _joined is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        _joined = Ranks(dist.new_group(backend="gloo", timeout=_EXCHANGE_TIMEOUT), _store)
    return _joined or _alone


def join() -> Ranks:
    """Join the other processes that torchrun started. Without torchrun, return a single rank.

    Raises:
        UserError: this process cannot connect to the others.
    """
    if launched_ranks() > 1 and not dist.is_initialized():
        us = f"RANK={os.environ['RANK']} of WORLD_SIZE={launched_ranks()}"
        remedy = "Start ranks with fit.gpus or torchrun. To train in one process, unset RANK."
        if missing := [name for name in _NEEDED if not os.environ.get(name)]:
            raise UserError(f"{us}: {', '.join(missing)} not set. {remedy}")
        gpus = torch.cuda.is_available()
        if gpus:
            torch.cuda.set_device(local_rank()[0] % torch.cuda.device_count())
        waiting = Timer(_WARN_SECONDS, log.warning, ["%s: still waiting for the other processes. %s", us, remedy])
        waiting.daemon = True
        waiting.start()
        try:
            _connect("cpu:gloo,cuda:nccl" if gpus else "gloo")
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{us}: cannot connect to the other processes: {_cause(error)} {remedy}") from error
        finally:
            waiting.cancel()
    return current()


def _connect(backend: str) -> None:
    global _store
    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    # After a restart by torchrun, the store still has the values of the previous ranks.
    start = f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    _store = dist.PrefixStore(start, store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=_store, rank=rank, world_size=size)
    current()


@contextmanager
def alone() -> Iterator[None]:
    """Work without the other ranks. In this context, `current` returns a single rank."""
    global _joined
    joined, _joined = current(), _alone
    try:
        yield
    finally:
        _joined = None if joined is _alone else joined


def leave() -> None:
    """Leave the process group at the end of the process, when the GPU no longer uses it."""
    global _joined, _store
    if _joined is not None:
        _joined = _store = None
        dist.destroy_process_group()


def _cause(error: BaseException) -> str:
    """Return the cause in PyTorch's message: NCCL's last error, otherwise the first line."""
    text = str(error).partition("Last error:")[2].strip().replace("\n", " ") or first_line(error)
    return text if text.endswith(".") else f"{text}."


def _flat(tensor: "Tensor") -> "Tensor":
    """View a dense tensor as a vector, in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
