"""The loader for progressive resizing. Each stage of the fit has its own image size and batch size.

Small images in the first stages make most epochs cheap (Howard 2018 in fast.ai's DAWNBench entry, Touvron et al. 2019,
arXiv:1906.06423, Tan and Le 2021, arXiv:2104.00298). Validation has one size, so that all scores are comparable.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.data.dataset import Split
from augment.pipeline.batch import Batch
from augment.pipeline.graph.decoding import Placement
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan
from augment.support.errors import UserError
from trainer.loop.resize_stages import FitStage


class StagedLoader:
    """Takes the batches of each epoch from the loader of the epoch's stage. All loaders have the same split.

    Only the current stage has a pipeline, except in its last epoch. During the last epoch of a stage, the next pipeline
    is built in the background, so that the next stage starts immediately.
    """

    def __init__(self, stages: Sequence[FitStage], loaders: Sequence[Loader]) -> None:
        self.stages = tuple(stages)
        self._loaders = tuple(loaders)
        self._stage = 0  # index of the current stage

    @property
    def plan(self) -> Plan:
        """The plan of the current stage."""
        return self._loader.plan

    @property
    def split(self) -> Split:
        """The images and targets, the same in all stages."""
        return self._loader.split

    @property
    def placement(self) -> Placement:
        """The device placement of decoding, the same in all stages."""
        return self._loader.placement

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, if the pass continues."""
        return self._loader.epoch

    def __len__(self) -> int:
        """Return the number of batches in the epoch of the next batch."""
        return self.batches_in(self.epoch)

    def batches_in(self, epoch: int) -> int:
        return len(self._loaders[self._stage_of(epoch)])

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of images in consecutive batches of an epoch, over all ranks."""
        return self._loaders[self._stage_of(epoch)].images_in(epoch, first, batches)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it after `load_state_dict`."""
        epoch = self._loader.next_epoch
        self._enter(epoch)
        following = self._stage_of(epoch + 1)
        for number, batch in enumerate(self._loader):
            if number == 0 and following != self._stage:  # the first batch is ready, so its pipeline has been built
                self._loaders[following].start_at(self.stages[following].start)
                self._loaders[following].prepare()
            yield batch

    def prepare(self) -> None:
        """Start to build the pipeline of the next pass, see `Loader.prepare`."""
        self._loader.prepare()

    def end_pass(self) -> None:
        """Make the next pass start at the first batch of the next epoch, even after `load_state_dict`."""
        self._loader.end_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return the exact position, and the stages so far."""
        if self._loader.next_epoch == self.epoch:  # between two passes, save the position of the next one
            self._enter(self.epoch)
        return {"epoch": self.epoch, "stages": self._history(self.epoch), "loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any], of_ranks: Sequence[dict[str, Any]] = ()) -> None:
        """Restore a position from `state_dict`. See `Loader.load_state_dict`.

        Raises:
            UserError: the state comes from a loader with other batches or stages.
        """
        self.check_state(state)
        self.close()
        self._stage = self._stage_of(state["epoch"])
        self._loader.load_state_dict(state["loader"], [each["loader"] for each in of_ranks])
        for loader in self._loaders:
            loader.placement = self.placement  # as in the saved run

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a state comes from a loader with the same batches up to the saved epoch. Later stages may differ.

        Raises:
            UserError: the batches differ. The message names the key.
        """
        saved = state.get("stages")
        if saved is None or saved != self._history(state["epoch"]):
            raise UserError(
                "fit.stages: image or batch sizes differ from the saved run for epochs that the saved run has already "
                "started. Change only later stages."
            )
        self._loaders[self._stage_of(state["epoch"])].check_state(state["loader"])

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()

    @property
    def _loader(self) -> Loader:
        return self._loaders[self._stage]

    def _stage_of(self, epoch: int) -> int:
        """Return the index of an epoch's stage. Epochs after the fit belong to the last stage."""
        return bisect_right([stage.start for stage in self.stages], epoch) - 1

    def _enter(self, epoch: int) -> None:
        """Switch to the stage of an epoch."""
        stage = self._stage_of(epoch)
        if stage != self._stage:
            self._loader.close()
            self._stage = stage
            self._loader.start_at(epoch)

    def _history(self, epoch: int) -> list[list[Any]]:
        """Return the image size, batch size and number of epochs of each stage, up to the end of an epoch."""
        begun = self.stages[: self._stage_of(epoch) + 1]
        lengths = [stage.epochs for stage in begun[:-1]] + [epoch + 1 - begun[-1].start]
        return [[s.size.plain, s.batch_size, length] for s, length in zip(begun, lengths, strict=True)]
