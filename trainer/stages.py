"""Progressive resizing: a fit in stages, each with its own size of the pictures and of the batches.

Small pictures first (Howard 2018, in fast.ai's DAWNBench entry; Touvron et al. 2019, arXiv:1906.06423; Tan and Le 2021,
arXiv:2104.00298) make most epochs cheap. Validation stays at one size, so that all epochs can be compared.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from time import monotonic
from typing import Any

from augment.config import Aug
from augment.errors import UserError
from augment.graph import Placement
from augment.loader import Batch, Loader
from augment.loader_state import check_state
from augment.params import Count, parse_settings, setting, settings
from augment.plan import Plan
from augment.wording import amount

# Seconds before the end of a stage at which the next one's pipeline is begun; building takes 1 to 3 on a GPU.
_LEAD = 10.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some epochs of a fit, with pictures of one size in batches of one size."""

    epochs: int | None = setting(
        Count(optional=True, within=(1, 10**6), doc="passes of this stage; null, in one at most: all that are left")
    )
    size: int | None = setting(
        replace(settings(Aug)["size"], default=None, optional=True, doc="side of the square; null: aug.size")
    )
    batch_size: int | None = setting(
        Count(optional=True, within=(1, 10**6), doc="pictures in a batch; null: fit.batch_size")
    )
    name: str = ""


def parse_stages(given: object, key: str = "fit.stages") -> tuple[Stage, ...]:
    """Check an ordered mapping of stages, `{name: {setting: value}}`; null counts as none.

    Raises:
        UserError: an unknown key, a value that is not allowed, or several stages that take what is left.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"{key}: {given!r} is not allowed. Allowed: a mapping of stages, as small: {{epochs: 5}}.")
    if twice := [name for name, count in Counter(map(str, given)).items() if count > 1]:
        raise UserError(f"{key}.{twice[0]}: there twice, as text and as a number. Allowed: a name of its own each.")
    if dotted := [name for name in given if "." in str(name)]:
        raise UserError(f"{key}.{dotted[0]}: a stage's name has no dot. Allowed: any other name.")
    stages = tuple(
        replace(parse_settings(Stage, values, f"{key}.{name}"), name=str(name)) for name, values in given.items()
    )
    takers = [stage.name for stage in stages if stage.epochs is None]
    if len(takers) > 1:
        allowed = "at most one stage without epochs, which takes the rest"
        raise UserError(f"{key}.{takers[1]}.epochs: null, as in {key}.{takers[0]}. Allowed: {allowed}.")
    return stages


def plain_stages(stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    """Return stages as plain values, complete, that `parse_stages` makes the same stages of."""
    return {stage.name: {name: getattr(stage, name) for name in settings(Stage)} for stage in stages}


@dataclass(frozen=True, kw_only=True)
class FullStage:
    """A stage in which nothing is left open.

    Attributes:
        name: in the configuration.
        start: its first epoch.
        epochs: how many it has.
        size: side of its pictures in pixels.
        batch_size: pictures in its batches.
    """

    name: str
    start: int
    epochs: int
    size: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.size} px, batch {self.batch_size}"


def complete_stages(
    stages: Sequence[Stage], *, epochs: int, size: int, batch_size: int, key: str = "fit.stages"
) -> tuple[FullStage, ...]:
    """Fill in what stages leave open.

    Args:
        stages: of the whole fit, one after the other.
        epochs: of the whole fit.
        size: of the pictures where a stage gives none, in pixels.
        batch_size: of the batches where a stage gives none.
        key: key path of the stages.

    Raises:
        UserError: the stages do not have as many epochs as the fit.
    """
    fixed = sum(stage.epochs or 0 for stage in stages)
    rest = epochs - fixed
    is_open = any(stage.epochs is None for stage in stages)
    if rest and not is_open:
        allowed = "the same number, or one stage without epochs, which takes the rest"
        raise UserError(f"{key}: the stages have {amount(fixed, 'epoch')}, fit.epochs is {epochs}. Allowed: {allowed}.")
    if rest < 1 and is_open:
        name = next(stage.name for stage in stages if stage.epochs is None)
        raise UserError(
            f"{key}.{name}: no epoch is left for it, the others have {fixed} of {epochs}. "
            f"Allowed: at least one; a larger fit.epochs, or fewer epochs before or after it."
        )
    lengths = [stage.epochs or rest for stage in stages]
    starts = accumulate(lengths, initial=0)
    return tuple(
        FullStage(
            name=stage.name,
            start=start,
            epochs=length,
            size=stage.size or size,
            batch_size=stage.batch_size or batch_size,
        )
        for stage, start, length in zip(stages, starts, lengths, strict=False)
    )


class StagedLoader:
    """Goes through the epochs of a fit, each with the loader of its stage; a loader as the learner wants it.

    One pipeline is alive at a time. Only towards the end of a stage's last epoch the next stage's is built in the
    background, so that the change takes no time.

    Args:
        stages: what there is to go through.
        loaders: of each stage, over the same split.
        limit: batches that are taken of an epoch at most.
    """

    def __init__(self, stages: Sequence[FullStage], loaders: Sequence[Loader], limit: int | None = None) -> None:
        assert stages
        assert len(stages) == len(loaders)
        self.stages = tuple(stages)
        self._loaders = tuple(loaders)
        self._limit = limit
        self._now = 0  # number of the stage whose loader is in use

    @property
    def plan(self) -> Plan:
        """What is done to the pictures in the stage that is under way."""
        return self._loader.plan

    @property
    def placement(self) -> Placement:
        """Where pictures are decoded, in all stages."""
        return self._loader.placement

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, if the pass goes on."""
        return self._loader.epoch

    def __len__(self) -> int:
        """Batches of the epoch that the next batch belongs to."""
        return self.batches_in(self.epoch)

    def batches_in(self, epoch: int) -> int:
        """Batches in an epoch."""
        return len(self._loaders[self._number(epoch)])

    def begins(self, epoch: int) -> FullStage | None:
        """Return the stage that begins with an epoch, if one does."""
        stage = self.stages[self._number(epoch)]
        return stage if stage.start == epoch else None

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it after `load_state_dict`."""
        epoch = self._loader.next_epoch
        self._enter(epoch)
        ending = self._number(epoch + 1) != self._now
        count = self.batches_in(epoch) if self._limit is None else min(self._limit, self.batches_in(epoch))
        begun = monotonic()
        for number, batch in enumerate(self._loader, 1):
            # The time that a batch has taken so far tells when the pass will end.
            left = count - (self._loader.batch or count)
            if ending and left * (monotonic() - begun) <= _LEAD * number:
                ending = False
                self._begin_next()
            yield batch

    def prepare(self) -> None:
        """Build the pipeline of the next pass in the background, see `Loader.prepare`."""
        self._loader.prepare()

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch, also right after `load_state_dict`."""
        self._loader.end_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, to the batch, and the stages so far."""
        if self._loader.next_epoch == self.epoch:  # between two passes: what comes next counts
            self._enter(self.epoch)
        return {"epoch": self.epoch, "stages": self._history(self.epoch), "loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next pass yields the rest of that epoch, the same batches.

        Raises:
            UserError: the state is that of a loader of other batches or stages.
        """
        self.check_state(state)
        self.close()
        self._now = self._number(state["epoch"])
        self._loader.load_state_dict(state["loader"])
        for loader in self._loaders:
            loader.placement = self.placement  # which may have gone back to what was chosen then

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a saved state is that of a loader of the same batches, up to its epoch; later stages may differ.

        Raises:
            UserError: it is not; the message names the key that differs.
        """
        saved = state.get("stages")
        if saved is None or saved != self._history(state["epoch"]):
            raise UserError(
                "fit.stages: sizes or batch sizes are not those of the saved run up to where it stopped. "
                "Allowed: the same; only the stages after it may change."
            )
        check_state(state["loader"], self._loaders[self._number(state["epoch"])].identity)

    def close(self) -> None:
        """Give the threads and memory of all pipelines back."""
        for loader in self._loaders:
            loader.close()

    @property
    def _loader(self) -> Loader:
        return self._loaders[self._now]

    def _number(self, epoch: int) -> int:
        """Return the number of an epoch's stage; whatever comes after the fit counts as the last one."""
        return bisect_right([stage.start for stage in self.stages], epoch) - 1

    def _enter(self, epoch: int) -> None:
        """Change to the stage of an epoch, if it is another one."""
        number = self._number(epoch)
        if number != self._now:
            self._loader.close()
            self._now = number
            self._loader.start_at(epoch)

    def _begin_next(self) -> None:
        following = self._now + 1
        self._loaders[following].start_at(self.stages[following].start)
        self._loaders[following].prepare()

    def _history(self, epoch: int) -> list[list[int]]:
        """Return size and batch size of each stage up to an epoch, and its epochs up to and with that one."""
        begun = self.stages[: self._number(epoch) + 1]
        lengths = [stage.epochs for stage in begun[:-1]] + [epoch + 1 - begun[-1].start]
        return [[s.size, s.batch_size, length] for s, length in zip(begun, lengths, strict=True)]


def check_loader_state(state: Mapping[str, Any], loader: Loader | StagedLoader) -> None:
    """Check that a saved state of a train loader fits another one, with stages or without.

    Raises:
        UserError: it does not; the message names the key that differs.
    """
    if isinstance(loader, StagedLoader):
        loader.check_state(state)
    elif "stages" in state:
        raise UserError("fit.stages: the saved run had some. Allowed: the same, to go on with it.")
    else:
        check_state(state, loader.identity)
