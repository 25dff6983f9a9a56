"""The processes that train one model together: ranks, one a GPU, as torchrun starts them.

Each rank computes the gradients of its share of a batch. They are added up once a step, as one flat tensor, before any
callback sees them, so that every rank makes the same step. What Python objects and decisions need goes through a second
group on the CPU, so that nothing waits for a GPU.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from threading import Timer
from time import sleep
from typing import Any, TypeVar

from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor, dist, torch
from augment.support.process import launched, local_rank
from augment.support.user_code import describe_raised

T = TypeVar("T")

log = logging.getLogger(__name__)

# Another rank may check its images for hours before it says how to go on. One that dies is noticed at once.
_PATIENCE = timedelta(days=7)

# What ranks leave for each other in PyTorch's store: why one ended, and how far each is.
_REASON, _PROGRESS = "reason", "progress"

# What PyTorch's libraries say of a process that has ended.
_ENDED = ("onnection", "Socket closed", "Broken pipe", "remote process", "imed out", "timeout", "ncclRemoteError")

# What a launcher sets, besides RANK and WORLD_SIZE.
_NEEDED = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

# Seconds after which a process says that it still waits for the others to start.
_LATE = 30.0

# Training batches between two decisions, each of which costs the host some tenths of a millisecond.
EVERY = 8


class LostRankError(UserError):
    """Another rank has ended, so that this one cannot go on."""


class Ranks:
    """This process among those that train together; alone, nothing is exchanged.

    All ranks make the same exchanges, in the same order. Each raises `LostRankError` if another rank has ended.

    Args:
        control: PyTorch's group for objects and decisions; None: this process trains alone.
        store: PyTorch's store, which all ranks read and write without waiting for each other; None: a rank that does
            otherwise than the others is noticed only when they have waited for it in vain.

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
        self._done = self._cancels = 0  # exchanges that began, and how many of them are about a cancel

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes, prints and tracks."""
        return self.rank == 0

    def add_up(self, tensors: "Iterable[Tensor]") -> None:
        """Replace tensors by their sums over the ranks, in one exchange a type, which the host does not wait for."""
        if self.size == 1:
            return
        for _, same in groupby(sorted(tensors, key=lambda tensor: str(tensor.dtype)), key=lambda tensor: tensor.dtype):
            values = [_flat(tensor) for tensor in same]
            sizes = [value.numel() for value in values]
            flat = values[0].new_empty(sum(sizes))
            parts = list(torch.split(flat, sizes))
            torch._foreach_copy_(parts, values)  # on a GPU, ten times as fast as torch.cat for many tensors
            self._exchange(partial(dist.all_reduce, flat))
            torch._foreach_copy_(values, parts)

    def copy_from_main(self, tensors: "Iterable[Tensor]") -> None:
        """Replace tensors by those of rank 0, but for expanded ones, which nothing can be written to."""
        self.gather(None)  # the first exchange between GPUs has little patience for a rank that still checks its images
        for tensor in tensors if self.size > 1 else ():
            if tensor.untyped_storage().nbytes() >= tensor.nbytes:
                self._exchange(partial(dist.broadcast, _flat(tensor.detach()), src=0))

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._exchange(lambda: dist.all_gather_object(values, value, group=self._control))
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        return self.gather(value)[0]

    def agree(self, name: str, wish: bool) -> bool:
        """Return whether any rank wishes for something; all get the same answer.

        All are asked at every `EVERY`-th call, so that the host rarely waits for others: keep wishing until then.
        Alone, the answer is the wish itself.
        """
        if self.size == 1:
            return wish
        self._calls[name] += 1
        return self._calls[name] % EVERY == 0 and any(self.gather(wish))

    def cancel(self, cancel: Exception, position: object) -> None:
        """Wait until all ranks leave a level of the loop alike: otherwise they would hang, or train apart.

        Raises:
            UserError: another rank does not leave it, or leaves another one.
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return
        self._cancels += 1
        mine = type(cancel).__name__, position, self._done
        if (other := self._exchange(self._absent)) is None:
            other = next((rank for rank, theirs in enumerate(self.gather(mine)) if theirs != mine), None)
        if other is not None:
            raise UserError(
                f"{describe_raised(cancel).removesuffix('.')} was raised on rank {self.rank}, but not on rank {other} "
                "at the same time. Allowed: to make the same decision on all ranks: use learner.ranks.agree("
                '"NAME", wish) in training batches, and learner.ranks.broadcast(value) elsewhere.'
            )

    def _absent(self) -> int | None:
        """Wait for the others to cancel, too; return one that has begun another exchange, and will not come."""
        others = [rank for rank in range(self.size) if rank != self.rank and self._store is not None]
        while others:
            try:
                done, cancels = map(int, self._store.get(f"{_PROGRESS}/{others[-1]}").split())
            except RuntimeError:  # the process that held the store was killed, and all stop
                break
            if cancels >= self._cancels:
                others.pop()
            elif done >= self._done:
                return others[-1]
            elif why := reported():
                raise LostRankError(why)
            else:
                sleep(0.005)
        return None

    def _exchange(self, work: Callable[[], T]) -> T:
        self._done += 1
        if self._store is not None:
            with suppress(RuntimeError):  # the store has gone with the process that held it
                self._store.set(f"{_PROGRESS}/{self.rank}", f"{self._done} {self._cancels}")  # takes 3 microseconds
        try:
            return work()
        except RuntimeError as error:
            who = f"the {self.size} processes that train together"
            if not (why := reported()) and not any(text in str(error) for text in _ENDED):
                raise UserError(f"{who} cannot exchange data: {_cause(error)}") from error
            raise LostRankError(why or f"another of {who} has ended.") from error


_alone = Ranks()
_joined: Ranks | None = None
_store: Any = None  # that of `join`


def report(message: str) -> bool:
    """Leave the reason why this rank ends where the others find it, unless one has; return whether none has."""
    with suppress(RuntimeError, ValueError):  # the store has gone with the process that held it
        return _store is None or _store.compare_set(_REASON, "", message).decode(errors="replace") == message
    return True


def reported() -> str:
    """Return the reason why a rank has ended; empty if there is none."""
    with suppress(RuntimeError, ValueError):
        if _store is not None and _store.check([_REASON]):
            return str(_store.get(_REASON).decode(errors="replace"))
    return ""


def current() -> Ranks:
    """Return the ranks that this process has joined, here or through PyTorch; before that, it is alone."""
    global _joined
    if _joined is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        _joined = Ranks(dist.new_group(backend="gloo", timeout=_PATIENCE), _store)
    return _joined or _alone


def join() -> Ranks:
    """Join the processes that torchrun started with this one; without it, the process is alone.

    Raises:
        UserError: it cannot connect to them.
    """
    if launched() > 1 and not dist.is_initialized():
        us = f"RANK={os.environ['RANK']} of WORLD_SIZE={launched()}"
        allowed = "Allowed: fit.gpus or torchrun, which set all that is needed; or to unset RANK, to train alone."
        if missing := [name for name in _NEEDED if not os.environ.get(name)]:
            raise UserError(f"{us}: {', '.join(missing)} not set. {allowed}")
        gpus = torch.cuda.is_available()
        if gpus:
            torch.cuda.set_device(local_rank()[0] % torch.cuda.device_count())
        waiting = Timer(_LATE, log.warning, ["%s: still waiting for the other processes. %s", us, allowed])
        waiting.daemon = True
        waiting.start()
        try:
            _connect("cpu:gloo,cuda:nccl" if gpus else "gloo")
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{us}: cannot connect to the other processes: {_cause(error)} {allowed}") from error
        finally:
            waiting.cancel()
    return current()


def _connect(backend: str) -> None:
    global _store
    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    # torchrun restarts ranks with the store of those that have ended.
    start = f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    _store = dist.PrefixStore(start, store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=_store, rank=rank, world_size=size)
    current()


def leave() -> None:
    """Leave the other ranks at the end of the process, once nothing on the GPU refers to them any more."""
    global _joined, _store
    if _joined is not None:
        _joined = _store = None
        dist.destroy_process_group()


def _cause(error: BaseException) -> str:
    """Return the part of PyTorch's message that says why: NCCL's last error, otherwise the first line."""
    text = str(error).partition("Last error:")[2].strip().replace("\n", " ") or first_line(error)
    return text if text.endswith(".") else f"{text}."


def _flat(tensor: "Tensor") -> "Tensor":
    """Return a dense tensor as a vector in the order of its memory, which it shares."""
    return tensor.as_strided((tensor.numel(),), (1,))
