"""The loader of progressive resizing: a fit in stages, each with its own image size and batch size.

Small images first (Howard 2018, in fast.ai's DAWNBench entry; Touvron et al. 2019, arXiv:1906.06423; Tan and Le 2021,
arXiv:2104.00298) make most epochs cheap. Validation stays at one size, so that all epochs can be compared.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.pipeline.batch import Batch
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan
from augment.support.errors import UserError
from trainer.loop.resize_schedule import FitStage


class StagedLoader:
    """A loader whose epochs come from the loaders of their stages, all over the same split.

    Only one pipeline exists at a time, except in a stage's last epoch: there, the next stage's is built in the
    background, so that the change takes no time.
    """

    def __init__(self, stages: Sequence[FitStage], loaders: Sequence[Loader]) -> None:
        self.stages = tuple(stages)
        self._loaders = tuple(loaders)
        self._now = 0  # number of the stage whose loader is in use

    @property
    def plan(self) -> Plan:
        """What is done to the images in the current stage."""
        return self._loader.plan

    @property
    def placement(self) -> Placement:
        """Where images are decoded, in all stages."""
        return self._loader.placement

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, if the pass continues."""
        return self._loader.epoch

    def __len__(self) -> int:
        """Batches of the epoch that the next batch belongs to."""
        return self.batches_in(self.epoch)

    def batches_in(self, epoch: int) -> int:
        """Batches in an epoch."""
        return len(self._loaders[self._number(epoch)])

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Images in consecutive batches of an epoch, those of all ranks."""
        return self._loaders[self._number(epoch)].images_in(epoch, first, batches)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it after `load_state_dict`."""
        epoch = self._loader.next_epoch
        self._enter(epoch)
        following = self._number(epoch + 1)
        for number, batch in enumerate(self._loader):
            if number == 0 and following != self._now:  # nothing should compete with the pipeline of the first batch
                self._loaders[following].start_at(self.stages[following].start)
                self._loaders[following].prepare()
            yield batch

    def prepare(self) -> None:
        """Build the pipeline of the next pass in the background, see `Loader.prepare`."""
        self._loader.prepare()

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch, also right after `load_state_dict`."""
        self._loader.end_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, to the batch, and the stages so far."""
        if self._loader.next_epoch == self.epoch:  # between two passes: the next one counts
            self._enter(self.epoch)
        return {"epoch": self.epoch, "stages": self._history(self.epoch), "loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to the position that `state_dict` returned: the next pass yields the same rest of that epoch.

        Raises:
            UserError: the state comes from a loader with other batches or stages.
        """
        self.check_state(state)
        self.close()
        self._now = self._number(state["epoch"])
        self._loader.load_state_dict(state["loader"])
        for loader in self._loaders:
            loader.placement = self.placement  # restored to the saved run's choice

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a saved state comes from a loader of the same batches up to its epoch; later stages may differ.

        Raises:
            UserError: it does not; the message names the key that differs.
        """
        saved = state.get("stages")
        if saved is None or saved != self._history(state["epoch"]):
            raise UserError(
                "fit.stages: sizes or batch sizes are not those of the saved run up to where it stopped. "
                "Allowed: the same; only the stages after it may change."
            )
        self._loaders[self._number(state["epoch"])].check_state(state["loader"])

    def close(self) -> None:
        """Release the threads and memory of all pipelines."""
        for loader in self._loaders:
            loader.close()

    @property
    def _loader(self) -> Loader:
        return self._loaders[self._now]

    def _number(self, epoch: int) -> int:
        """Return the number of an epoch's stage; epochs after the fit belong to the last stage."""
        return bisect_right([stage.start for stage in self.stages], epoch) - 1

    def _enter(self, epoch: int) -> None:
        """Switch to the stage of an epoch if it is not the current one."""
        number = self._number(epoch)
        if number != self._now:
            self._loader.close()
            self._now = number
            self._loader.start_at(epoch)

    def _history(self, epoch: int) -> list[list[Any]]:
        """Return the size, the batch size and the number of epochs of each stage, up to and including an epoch."""
        begun = self.stages[: self._number(epoch) + 1]
        lengths = [stage.epochs for stage in begun[:-1]] + [epoch + 1 - begun[-1].start]
        return [[s.size.plain, s.batch_size, length] for s, length in zip(begun, lengths, strict=True)]
