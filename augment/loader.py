"""Exact epochs out of a DALI pipeline. The only owner of reset: nobody else builds, drains or restarts one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from nvidia.dali.pipeline import Pipeline
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from augment.ahead import Ahead
from augment.dataset import Split
from augment.errors import UserError
from augment.graph import Placement
from augment.loader_state import check_state, digest_of
from augment.lost import explain
from augment.mixing import Mixer
from augment.pipeline import Shard, batches_per_epoch, build_pipeline
from augment.plan import Plan


@dataclass(frozen=True)
class Batch:
    """What the model is fed.

    Attributes:
        images: (N, 3, size, size) float32 or float16, normalized, in channels_last memory.
        targets: (N,) int64 class indices; if samples were mixed, (N, classes) float32, the share of each class. Labels
            and numbers are (N, K) float32.
        indices: (N,) int64, each sample's place in the split's files.
        views: the pictures made of each sample, as `images`, which is the first of them.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    views: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)


class Loader:
    """Iterates over a split, one epoch a pass.

    A pass that is cut short (break, exception) is over: the next one starts with the next epoch's first batch. A
    loader that was given a state goes on in the middle of the epoch where the state was taken.

    Args:
        plan: what is done to the pictures.
        split: the pictures and their targets.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        seed: of the run.
        device: where batches are made and handed out.
        classes: number of classes, which a plan that mixes samples needs.
        shard: rank and world size.
        placement: where pictures are decoded, by default as the device has it.
        drop_last: leave out the smaller last batch, unless it is the only one.
        threads: CPU threads of the pipeline.
        half: float16 images.
        raw: uint8 images in HWC memory, before normalization, to look at; samples are not mixed.

    Raises:
        UserError: fewer samples than ranks.
    """

    def __init__(
        self,
        plan: Plan,
        split: Split,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        classes: int | None = None,
        shard: Shard | None = None,
        placement: Placement | None = None,
        drop_last: bool = False,
        threads: int = 2,
        half: bool = False,
        raw: bool = False,
    ) -> None:
        self.plan = plan
        self.split = split
        self.batch_size = batch_size
        self._seed = seed
        self._device = device
        self._shard = shard or Shard()
        self._drop_last = drop_last
        self.placement = placement or Placement("gpu" if device.type == "cuda" else "cpu")
        self._options: dict[str, Any] = {"threads": threads, "half": half, "raw": raw}
        if len(split) < self._shard.world_size:
            raise UserError(
                f"data: {len(split)} pictures in {plan.split} for {self._shard.world_size} ranks. "
                "Allowed: at least one picture a rank."
            )
        kind = torch.float32 if isinstance(split.targets[0], tuple) else torch.int64
        self._targets = torch.tensor(split.targets, dtype=kind, device=device)
        self._files = digest_of(split)
        # A pipeline for each pass: DALI draws random windows on and on, but validation must see the same ones each
        # time; and ranks must stay in step, also if one was cut short and another, with a smaller shard, was not.
        # And what DALI cannot save is brought back by running through the epoch so far.
        again = plan.draws_in_dali if plan.split == "val" else self._shard.world_size > 1
        self._one_pass = again or not plan.checkpoints
        self._per_epoch = batches_per_epoch(len(split), batch_size, self._shard.world_size)
        self._mixer: Mixer | None = None
        if plan.batch_stages and not raw:
            assert classes is not None, "to mix targets, the number of classes is needed"
            self._mixer = Mixer(plan, seed=seed, rank=self._shard.rank, classes=classes)
        self._pipeline: Pipeline | None = None
        self._primed = False  # whether the next batch has been asked for already
        self._ahead: Ahead[Pipeline] | None = None
        self._built_at = 0  # the epoch in which the pipeline was built
        self._consumed = 0  # DALI batches taken from it since
        self._resuming = False

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, if the pass goes on."""
        return self._built_at + self._consumed // self._per_epoch

    @property
    def batch(self) -> int:
        """Number, in its epoch, of the next batch, if the pass goes on; 0 after an epoch's last one."""
        return self._consumed % self._per_epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass belongs to."""
        return self.epoch + (self._is_inside and not self._resuming)

    @property
    def samples(self) -> int:
        """Samples of this rank in an epoch; each rank keeps its shard of every epoch's new order."""
        rank, world_size, total = self._shard.rank, self._shard.world_size, len(self.split)
        return (rank + 1) * total // world_size - rank * total // world_size

    def __len__(self) -> int:
        """Batches of this rank in an epoch."""
        full, rest = divmod(self.samples, self.batch_size)
        return full + (1 if rest and not (self._drop_last and full) else 0)

    def batches_in(self, epoch: int) -> int:
        """Batches of this rank in an epoch, the same in all."""
        return len(self)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it after `load_state_dict`."""
        # A state of an epoch's end is resumed as the pass goes on that was not interrupted.
        if (self._is_inside and not self._resuming) or self._is_spent:
            self._restart(self.next_epoch)
        self._resuming = False
        if self._pipeline is None:
            ahead, self._ahead = self._ahead, None
            self._pipeline, self._primed = ahead.result() if ahead else self._build(), True
        batches, samples, epoch = len(self), self.samples, self.epoch
        for number in range(self.batch, batches):
            outputs = self._run(self._pipeline)
            self._consumed += 1
            if number == batches - 1:
                # Before the last batch is handed out, so that a consumer who stops there has finished the epoch: what
                # drop_last leaves out, and the padding of a rank with a smaller shard.
                for _ in range(self._per_epoch - batches):
                    self._run(self._pipeline)
                    self._consumed += 1
            start = number * self.batch_size
            if samples - start < self.batch_size:
                outputs = [output[: samples - start] for output in outputs]
            yield self._batch(outputs, epoch, start)

    def prepare(self) -> None:
        """Build the pipeline of the next pass in the background, if it is not there: that pass then begins at once.

        Returns at once, and does nothing in the middle of a pass. What goes wrong is raised by the next pass.
        """
        if self._is_spent:
            self._restart(self.epoch)
        if self._pipeline is None and self._ahead is None:
            self._ahead = Ahead(self._build)

    def start_at(self, epoch: int) -> None:
        """Make the next pass that of an epoch, whatever came before; validation always draws epoch 0."""
        self._resuming = False
        if self._consumed or self._built_at != epoch:
            self._restart(epoch)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides about the batches: only a loader of the same identity can go on with a saved state."""
        return {
            "plan": self.plan.digest,
            "batch_size": self.batch_size,
            "seed": self._seed,
            "shard": [self._shard.rank, self._shard.world_size],
            "files": self._files,
            "device": self.placement.device,
            "decoding": self._decoding,
        }

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch, also right after `load_state_dict`."""
        self._resuming = False

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, to the batch; a few hundred bytes."""
        pipeline = None
        if self._pipeline is not None and self.plan.checkpoints:
            pipeline = self._pipeline.checkpoint()
        return self.identity | {
            "built_at": self._built_at,
            "consumed": self._consumed,
            "decode": self.placement.decode,
            "pipeline": pipeline,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next pass yields the rest of that epoch, the same batches.

        Raises:
            UserError: the state is that of a loader of other batches.
        """
        check_state(state, self.identity)
        if self.placement.auto:  # what was chosen then, which might be another choice now
            cache = self.placement.cache if state["decode"] == "mixed" else 0
            self.placement = replace(self.placement, decode=state["decode"], cache=cache)
        self._restart(state["built_at"])
        if state["consumed"]:
            self._pipeline, self._primed = self._build(state["pipeline"]), True
        if state["pipeline"] is None:
            for _ in range(state["consumed"]):
                self._run(self._pipeline)
        self._consumed = state["consumed"]
        self._resuming = True

    def close(self) -> None:
        """Give the pipeline's threads and memory back; the next pass builds a new one."""
        self._restart(self.epoch + self._is_inside)

    @property
    def _is_inside(self) -> bool:
        """Whether some of an epoch's batches were taken, and not all."""
        return self.batch > 0

    @property
    def _is_spent(self) -> bool:
        """Whether the pipeline was good for one pass, and that is over."""
        return self._one_pass and self._consumed > 0 and not self._is_inside

    def _restart(self, epoch: int) -> None:
        if self._ahead is not None:
            self._ahead.drop()
        self._pipeline, self._ahead = None, None
        # Validation always draws epoch 0.
        self._built_at, self._consumed = epoch if self.plan.split == "train" else 0, 0

    def _build(self, checkpoint: str | None = None) -> Pipeline:
        pipeline = build_pipeline(
            self.plan,
            self.split.files,
            batch_size=self.batch_size,
            seed=self._seed,
            epoch=self._built_at,
            placement=self.placement,
            shard=self._shard,
            checkpoint=checkpoint,
            **self._options,
        )
        pipeline.build()
        with self._explained():
            pipeline.schedule_run()  # the first time, as many batches as are prepared ahead
        return pipeline

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say which file it is that has gone, where DALI fails for that."""
        try:
            yield
        except RuntimeError as error:
            if found := explain(error, self.split.files):
                raise found from error
            raise

    @property
    def _decoding(self) -> list[str | float | bool] | None:
        """What decides about the pixels of a decoded picture; what was left to a trial does not count."""
        placement = self.placement
        if placement.device == "cpu":
            return None
        chosen = ["auto"] if placement.auto else [placement.decode, placement.cache > 0]
        return [*chosen, placement.hw_decoder_load]

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _run(self, pipeline: Pipeline) -> list[Tensor]:
        # On the GPU the batch is handed over on PyTorch's stream: nobody waits for it here.
        stream = torch.cuda.current_stream() if self._on_gpu else None
        with self._explained():
            if self._primed:
                self._primed = False
            else:
                pipeline.schedule_run()
            return [from_dlpack(output.as_tensor()) for output in pipeline.outputs(stream)]

    def _batch(self, outputs: list[Tensor], epoch: int, start: int) -> Batch:
        *pictures, index = outputs
        indices = index.flatten().long()
        targets = self._targets.index_select(0, indices)
        views = [picture.permute(0, 3, 1, 2) for picture in pictures]
        if self._mixer is not None:
            mixed = [self._mixer.mix(view, targets, epoch=epoch, start=start) for view in views]
            views, targets = [view for view, _ in mixed], mixed[0][1]
        return Batch(views[0], targets, indices, tuple(views))
