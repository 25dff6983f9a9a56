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
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from augment.support.errors import UserError, first_line
from augment.support.own_code import describe_raised
from augment.support.process import launched, local_rank
from augment.support.signals import killed_by_signals

T = TypeVar("T")

log = logging.getLogger(__name__)

# Another rank may check its images for hours before it says how to go on. One that dies is noticed at once.
_PATIENCE = timedelta(days=7)

# What ranks leave for each other in PyTorch's store: why one ended, and how far each is.
_REASON, _PROGRESS = "reason", "progress"

# Elements from which a tensor is exchanged by itself, which spares copying it next to others.
_LARGE = 2**22

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

    All ranks make the same exchanges, in the same order.

    Args:
        control: PyTorch's group for objects and decisions; None: this process trains alone.
        store: PyTorch's store, which all ranks read and write without waiting for each other.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    def __init__(self, control: Any = None, store: Any = None) -> None:
        self._control = control
        self._store = store
        self.rank = 0 if control is None else dist.get_rank()
        self.size = 1 if control is None else dist.get_world_size()
        self._asked: dict[str, tuple[Any, Tensor]] = {}
        self._calls: Counter[str] = Counter()
        self._done = self._meetings = 0  # exchanges that began, and how many of them are meetings

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes, prints and tracks."""
        return self.rank == 0

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over the ranks, in few exchanges, which the host does not wait for.

        Raises:
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return
        small = []
        for tensor in tensors:
            if tensor.numel() < _LARGE:
                small.append(tensor)
            else:
                self._exchange(partial(dist.all_reduce, _flat(tensor)))
        ordered = sorted(small, key=lambda tensor: str(tensor.dtype))
        for _, same in groupby(ordered, key=lambda tensor: tensor.dtype):
            values = [_flat(tensor) for tensor in same]
            sizes = [value.numel() for value in values]
            flat = values[0].new_empty(sum(sizes))
            parts = list(torch.split(flat, sizes))
            torch._foreach_copy_(parts, values)  # on a GPU, ten times as fast as torch.cat for many tensors
            self._exchange(partial(dist.all_reduce, flat))
            torch._foreach_copy_(values, parts)

    def copy_from_main(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0, but for expanded ones, which nothing can be written to."""
        self.gather(None)  # the first exchange between GPUs has little patience for a rank that still checks its images
        for tensor in tensors if self.size > 1 else ():
            if tensor.untyped_storage().nbytes() >= tensor.nbytes:
                self._exchange(partial(dist.broadcast, _flat(tensor.detach()), src=0))

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order.

        Raises:
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._exchange(lambda: dist.all_gather_object(values, value, group=self._control))
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0.

        Raises:
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return value
        values = [value]
        self._exchange(lambda: dist.broadcast_object_list(values, src=0, group=self._control))
        return values[0]

    def agree(self, name: str, wish: bool) -> bool:
        """Return whether any rank wished for something when all were last asked; all get the same answer.

        All are asked at every `EVERY`-th call, and answered at the next such one, so that no rank waits for others:
        keep wishing until then. Alone, the answer is the wish itself.

        Raises:
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return wish
        self._calls[name] += 1
        if self._calls[name] % EVERY:
            return False
        before = self._answer(name)
        asked = torch.tensor([int(wish and not before)], dtype=torch.int32)  # what is granted is not asked for again
        work = self._exchange(lambda: dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=self._control, async_op=True))
        self._asked[name] = work, asked
        return before

    def cancel(self, cancel: Exception, position: object) -> None:
        """Wait until all ranks leave a level of the loop alike: otherwise they would hang, or train apart.

        Args:
            cancel: the exception by which this rank leaves it.
            position: where the fit is.

        Raises:
            UserError: another rank does not leave it, or leaves another one.
            LostRankError: another rank has ended.
        """
        if apart := self.meet(type(cancel).__name__, position):
            raised = describe_raised(cancel).removesuffix(".")
            raise UserError(
                f"{raised} was raised on rank {self.rank}, but not on rank {apart[0]} at the same time. Allowed: to "
                'make the same decision on all ranks: use learner.ranks.agree("NAME", wish) in training batches, and '
                "learner.ranks.broadcast(value) elsewhere."
            )

    def meet(self, what: str, value: object = None) -> tuple[int, str | None, Any] | None:
        """Wait until all ranks call this with the same arguments. It is for what happens rarely: the host waits.

        Returns:
            None; or another rank with its arguments, which differ, None if it did not call this. Then raise an error.

        Raises:
            LostRankError: another rank has ended.
        """
        if self.size == 1:
            return None
        self._meetings += 1
        if (absent := self._exchange(self._absent)) is not None:
            return absent, None, None
        mine = what, value, self._done
        others = enumerate(self.gather(mine))
        return next(((rank, *theirs[:2]) for rank, theirs in others if theirs != mine), None)

    def _absent(self) -> int | None:
        """Wait for the others to meet this rank; return one that has begun another exchange, and will not come."""
        for rank in range(self.size):
            while rank != self.rank:
                try:
                    done, meetings = map(int, self._store.get(f"{_PROGRESS}/{rank}").split())
                except RuntimeError:  # the process that held the store was killed, and all stop
                    return None
                if meetings >= self._meetings:
                    break
                if done >= self._done:
                    return rank
                if why := reported():
                    raise LostRankError(why)
                sleep(0.005)
        return None

    def forget(self) -> None:
        """Forget what ranks have wished for."""
        for name in tuple(self._asked):
            self._answer(name)
        self._calls.clear()

    def _answer(self, name: str) -> bool:
        if name not in self._asked:
            return False
        work, asked = self._asked.pop(name)
        self._exchange(work.wait)
        return bool(asked.item())

    def _exchange(self, work: Callable[[], T]) -> T:
        self._done += 1
        if self._store is not None:
            with suppress(RuntimeError):  # the store has gone with the process that held it
                self._store.set(f"{_PROGRESS}/{self.rank}", f"{self._done} {self._meetings}")  # takes 3 microseconds
        try:
            return work()
        except RuntimeError as error:
            who = f"the {self.size} processes that train together"
            if not (why := reported()) and not any(text in str(error) for text in _ENDED):
                raise UserError(f"{who} cannot exchange data: {_cause(error)}") from error
            raise LostRankError(why or f"another of {who} has ended.") from error


def report(message: str) -> bool:
    """Leave the reason why this rank ends where the others find it, unless one has; return whether none has."""
    with suppress(RuntimeError, ValueError):  # the store has gone with the process that held it, or was left
        store = distributed_c10d._get_default_store()
        return bool(store.compare_set(_REASON, "", message).decode(errors="replace") == message)
    return True


def reported() -> str:
    """Return the reason why a rank has ended; empty if there is none."""
    with suppress(RuntimeError, ValueError):
        store = distributed_c10d._get_default_store()
        if store.check([_REASON]):
            return str(store.get(_REASON).decode(errors="replace"))
    return ""


_alone, _joined = Ranks(), None


def current() -> Ranks:
    """Return the ranks that this process has joined, here or through PyTorch; before that, it is alone."""
    global _joined
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return _alone
    if _joined is None:
        store = distributed_c10d._get_default_store()
        _joined = Ranks(dist.new_group(backend="gloo", timeout=_PATIENCE), store)
    return _joined


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
            with killed_by_signals():
                _connect("cpu:gloo,cuda:nccl" if gpus else "gloo")
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{us}: cannot connect to the other processes: {_cause(error)} {allowed}") from error
        finally:
            waiting.cancel()
    return current()


def _connect(backend: str) -> None:
    store, rank, size = next(rendezvous("env://"))
    dist.init_process_group(backend, store=empty_part(store, rank, size), rank=rank, world_size=size)
    current()


def empty_part(store: Any, rank: int, size: int) -> Any:
    """Return a part of a store that holds nothing: torchrun restarts ranks with the store of those that have ended.

    Rank 0 chooses the part, and repeats its answer until each rank has received it: what it answers may be old.
    """
    store.set(f"asks/{rank}", part := uuid4().hex)
    if rank:
        part = store.get(f"answer/{part}").decode()
        store.set(f"{part}/{rank}", "")
    for other in range(1, size if rank == 0 else 0):
        while not store.check([f"{part}/{other}"]):
            store.set(f"answer/{store.get(f'asks/{other}').decode()}", part)
            sleep(0.005)
    return distributed_c10d.PrefixStore(part, store)


def leave() -> None:
    """Leave the other ranks at the end of the process, once nothing on the GPU refers to them any more."""
    global _joined
    if _joined is not None:
        _joined.forget()
        _joined = None
        dist.destroy_process_group()


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the statistics that batch norms gather in training, which differ between ranks until they are averaged."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    found = (value for norm in norms for value in (norm.running_mean, norm.running_var))
    return [value for value in found if value is not None]


def _cause(error: BaseException) -> str:
    """Return the part of PyTorch's message that says why: NCCL's last error, otherwise the first line."""
    text = str(error).partition("Last error:")[2].strip().replace("\n", " ") or first_line(error)
    return text if text.endswith(".") else f"{text}."


def _flat(tensor: Tensor) -> Tensor:
    """Return a dense tensor as a vector in the order of its memory, which it shares."""
    return tensor.as_strided((tensor.numel(),), (1,))
