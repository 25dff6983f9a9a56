"""Exact epochs from a DALI pipeline. Only this module builds, drains and restarts the pipeline of a loader."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import torch
from PIL.Image import Image

from augment.data.dataset import Split
from augment.data.targets.spatial import SpatialKind
from augment.pipeline.batch import Batch
from augment.pipeline.geometry.batch_assembly import BatchMaker, TargetReader
from augment.pipeline.geometry.frames import Orientations
from augment.pipeline.geometry.mixing import Mixer
from augment.pipeline.graph.build import BuiltPipeline, Outputs, build_pipeline
from augment.pipeline.graph.decoding import Form, Placement
from augment.pipeline.graph.sample_order import Order, Reading
from augment.pipeline.graph.shard_prefetch import Stream
from augment.pipeline.loader_state import check_state, digest_of, restored
from augment.pipeline.unreadable_images import BadImages, UnreadableImageError, no_pipes
from augment.recipe.plan import Plan
from augment.support.background import Background
from augment.support.errors import UserError
from augment.support.formatting import amount

T = TypeVar("T")


class Loader:
    """Iterates over a split, one epoch per pass.

    A pass that is cut short (break, exception) is over: the next one starts with the next epoch's first batch, and the
    old one's iterator raises an error. A loader that has loaded a state resumes where it was saved.

    Args:
        plan: what is done to the images.
        split: the images and their targets.
        order: in which batches and order.
        placement: where images are decoded, and batches are made and returned.
        form: the form of the images. Raw ones are in HWC memory, and are not mixed; with frames, see `Batch`.
        classes: names of the classes, which a plan that mixes samples needs.

    Attributes:
        classes: names of the classes or labels, or of the numbers to predict.

    Raises:
        UserError: there are fewer samples than ranks.
    """

    def __init__(
        self,
        plan: Plan,
        split: Split,
        order: Order,
        placement: Placement,
        form: Form | None = None,
        *,
        classes: Sequence[str] = (),
    ) -> None:
        self.plan, self.split = plan, split
        self.batch_size = order.batch_size
        self.classes = tuple(classes)
        self.placement = placement
        self._order, self._shard = order, order.shard
        self._form = form or Form()
        if len(split) < self._shard.world_size:
            raise UserError(
                f"data: {amount(len(split), 'image')} in {plan.split} for {amount(self._shard.world_size, 'rank')}. "
                "Allowed: at least one image a rank."
            )
        self._reader: TargetReader | None = None
        self._targets = torch.empty(0)
        if isinstance(split.kind, SpatialKind):
            self._form = replace(self._form, frames=True)
            self._reader = TargetReader(split, placement.threads)
        else:
            self._targets = split.kind.collate(split.targets).to(placement.torch_device)
        self._files = digest_of(split)
        self._bad = BadImages(split)
        # Some loaders need a new pipeline for each pass. DALI keeps drawing new random windows, but validation must see
        # the same ones each time. Also, a state that DALI cannot save is restored by running through the epoch so far.
        self._one_pass = (plan.split == "val" and plan.draws_in_dali) or not plan.checkpoints
        self._built_at = 0  # the epoch in which the pipeline was built
        self._stream = Stream(split.files, split.window) if split.window else None
        self._per_epoch = self._reading.batches
        drawn: dict[str, Any] = {"seed": order.seed, "rank": order.shard.rank}
        mixer = None
        if plan.batch_stages and not self._form.raw:
            mixer = Mixer(plan, split.kind, classes=len(classes), **drawn)
        self._maker = BatchMaker(plan, split.kind, frames=self._form.frames, mixer=mixer, names=classes, **drawn)
        self._orientations = Orientations(split.files)
        self._pipeline: BuiltPipeline | None = None
        self._primed = False  # whether the next batch has been asked for already
        self._prepared: Background[BuiltPipeline] | None = None
        self._process: int | None = None  # where pipelines were built
        self._consumed = 0  # DALI batches taken from it since
        self._saved: tuple[int, str | None] = (0, None)  # batches taken before, and the checkpoint of that position
        self._resuming = False

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, if the pass continues."""
        return self._built_at + self._consumed // self._per_epoch

    @property
    def batch(self) -> int:
        """Number of the next batch within its epoch, if the pass continues; 0 after an epoch's last one."""
        return self._consumed % self._per_epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass belongs to."""
        return self.epoch + (self._is_inside and not self._resuming)

    @property
    def samples(self) -> int:
        """Number of samples of this rank in an epoch."""
        return self._shard.samples(len(self.split))

    def __reduce__(self) -> NoReturn:
        raise UserError("loader: cannot be copied or sent to another process. Allowed: one made in that process.")

    def __repr__(self) -> str:
        size = f"{len(self.split):,} samples, {amount(len(self), 'batch')}"
        return f"Loader({self.plan.split}, {size}, {self.placement.torch_device})"

    def __len__(self) -> int:
        """Batches in an epoch, the same number on all ranks."""
        full, rest = divmod(len(self.split), self.batch_size * self._shard.world_size)
        return full + bool(rest and not (self._order.drop_last and full))

    def batches_in(self, epoch: int) -> int:
        """Batches in an epoch."""
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Images in consecutive batches of an epoch, those of all ranks."""
        return sum(self._shard.counts(len(self.split), first * self.batch_size, batches * self.batch_size))

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it after `load_state_dict`."""
        if self._process not in (None, os.getpid()):  # its pipeline has no threads here, so this would hang
            raise UserError("loader: was used before this process was forked. Allowed: a loader made in this process.")
        # A state from the end of an epoch is resumed like a pass that was not interrupted.
        if (self._is_inside and not self._resuming) or self._is_spent:
            self._restart(self.next_epoch)
        self._resuming = False
        batches, epoch = len(self), self.epoch
        for number in range(self.batch, batches):
            if (self.epoch, self.batch) != (epoch, number):
                raise UserError("loader: this pass is over because another one has begun. Allowed: one pass at a time.")
            outputs = self._next()
            if number == batches - 1:
                # What drop_last leaves out comes before the last batch: who stops there has finished the epoch.
                for _ in range(self._per_epoch - batches):
                    self._next()
            start = number * self.batch_size
            counts = self._shard.counts(len(self.split), start, self.batch_size)
            if (own := counts[self._shard.rank]) < self.batch_size:  # one if none is left, for synchronized batch norms
                outputs = outputs.first(max(own, 1))
            yield self._batch(outputs, epoch, start, own / sum(counts))

    def show_batch(self, count: int = 16, *, epoch: int | None = None) -> Image:
        """Return an image of the next batch as the model gets it; the loader stays where it is.

        Args:
            count: number of images, at most 32.
            epoch: show the first batch of this epoch, from 0, instead.
        """
        from augment.pipeline.notebook_display import batch_image  # imports Matplotlib

        shown = Loader(self.plan, self.split, self._order, self.placement, self._form, classes=self.classes)
        return batch_image(shown, count, self.state_dict() if epoch is None else epoch)

    def prepare(self) -> None:
        """Build the pipeline of the next pass in the background, if there is none, so that the pass starts at once.

        Returns immediately, and does nothing in the middle of a pass. The next pass raises any errors.
        """
        if self._is_spent:
            self._restart(self.epoch)
        if self._pipeline is None and self._prepared is None:
            self._prepared = Background(self._build)

    def start_at(self, epoch: int) -> None:
        """Make the next pass that of a given epoch, whatever came before; validation always draws epoch 0."""
        self._resuming = False
        if self._consumed or self._built_at != epoch:
            self._restart(epoch)

    @property
    def identity(self) -> dict[str, Any]:
        """What determines the batches: only a loader with the same identity can resume from a saved state."""
        return {
            "plan": self.plan.digest if self._reader is None else f"{self.plan.digest} {self.plan.rules}",
            "batch_size": self.batch_size * self._shard.world_size,
            "seed": self._order.seed,
            "shard": [self._shard.rank, self._shard.world_size],
            "files": self._files,
            "window": self.split.window or None,
            "device": self.placement.device,
            "decoding": self.placement.decoding,
        }

    def end_pass(self) -> None:
        """Make the next pass start with the next epoch's first batch, also right after `load_state_dict`."""
        self._resuming = False
        if self._is_inside:
            self._restart(self.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, to the batch, in a few hundred bytes."""
        pipeline = self._pipeline if self.plan.checkpoints else None
        return self.identity | {
            "built_at": self._built_at,
            "consumed": self._consumed,
            "decode": self.placement.decode,
            "hw_decoder_load": self.placement.hw_decoder_load,
            "pipeline": None if pipeline is None else pipeline.checkpoint(),
            "stand_ins": dict(self._bad.stand_ins),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the position that `state_dict` returned: the next pass yields exactly the rest of that epoch.

        Between two epochs, the state of other ranks or operators is accepted, too; the samples are then in a new order.

        Raises:
            UserError: the state comes from a loader with other batches.
        """
        self.check_state(state)
        # Keep the choices made then; they might be others now.
        if self.placement.auto:
            cache = self.placement.cache if state["decode"] == "mixed" else 0
            self.placement = replace(self.placement, decode=state["decode"], cache=cache)
        if self.placement.load_auto:
            self.placement = replace(self.placement, hw_decoder_load=state["hw_decoder_load"])
        if state["shard"][1] != self._shard.world_size:
            self._restart(state["built_at"] + state["consumed"] // self._per_epoch)
            return
        self._restart(state["built_at"])
        self._bad.restore(state.get("stand_ins", {}))
        self._consumed = state["consumed"]
        if state["pipeline"] is not None:
            self._saved = self._consumed, state["pipeline"]
        fresh = not self._consumed or (not self._is_inside and self._saved[1] is None)
        self._resuming = fresh or restored(lambda: self._recover(self._running), inside=self._is_inside)
        if not self._resuming:
            self._restart(state["built_at"] + state["consumed"] // self._per_epoch)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a saved state comes from a loader of the same batches.

        Raises:
            UserError: it does not; the message names the key that differs.
        """
        check_state(state, self.identity, self._per_epoch)

    def close(self) -> None:
        """Free the pipeline's threads and memory; the next pass builds a new one."""
        self._restart(self.epoch + self._is_inside)

    @property
    def _is_inside(self) -> bool:
        """Whether some of an epoch's batches were taken, but not all."""
        return self.batch > 0

    @property
    def _is_spent(self) -> bool:
        """Whether the last pass is over and the next one needs a new pipeline."""
        return self._consumed > 0 and not self._is_inside and (self._one_pass or self._pipeline is None)

    def _restart(self, epoch: int) -> None:
        if self._prepared is not None:
            self._prepared.drop()
        if self._reader is not None:
            self._reader.forget()
        if self._stream is not None:
            self._stream.release()
        self._pipeline, self._prepared = None, None
        self._built_at, self._consumed = epoch if self.plan.split == "train" else 0, 0
        self._saved = (0, None)

    @property
    def _reading(self) -> Reading:
        batch_size = min(self.batch_size, -(-len(self.split) // self._shard.world_size))  # DALI would fill it up
        files, stand_ins = self.split.files, self._bad.stand_ins
        announce = self._reader.announce if self._reader is not None and self._reader.reads else None
        return Reading(
            files, batch_size, self._order.seed, self._built_at, self._shard, stand_ins, announce, self._stream
        )

    def _build(self, checkpoint: str | None = None) -> BuiltPipeline:
        self._process = os.getpid()
        pipeline = build_pipeline(self.plan, self._reading, self.placement, self._form, checkpoint)
        pipeline.schedule_run()  # the first time, this schedules all batches to prefetch
        return pipeline

    def _running(self) -> BuiltPipeline:
        """Return the pipeline, positioned at the loader's next batch; build it if there is none."""
        if self._pipeline is None:
            prepared, self._prepared = self._prepared, None
            taken, checkpoint = self._saved
            self._pipeline = prepared.result() if prepared else self._build(checkpoint)
            self._primed = True
            for _ in range(taken, self._consumed):
                self._run(self._pipeline)
        return self._pipeline

    def _next(self) -> Outputs:
        """Return the outputs of the next batch."""
        outputs = self._recover(lambda: self._run(self._running()))
        self._consumed += 1
        if self.split.max_bad and self.plan.checkpoints and self._consumed % 64 == 0:
            # At most so many batches are run again when an image turns out bad.
            self._saved = self._consumed, self._running().checkpoint()
        return outputs

    def _recover(self, work: Callable[[], T]) -> T:
        """Run the work and return its result; while images turn out bad, let others stand in for them and try again."""
        while True:
            try:
                return work()
            except BaseException as error:
                self._pipeline = None  # it is of no more use: it has failed, or has lost a batch to Ctrl-C
                if not isinstance(error, RuntimeError | UnreadableImageError):
                    raise
                self._bad.replace(error)

    def _run(self, pipeline: BuiltPipeline) -> Outputs:
        # On the GPU, the batch is handed over on PyTorch's stream: nothing waits for it here.
        stream = torch.cuda.current_stream(self.placement.gpu) if self.placement.device == "gpu" else None
        if self._primed:
            self._primed = False
        else:
            pipeline.schedule_run()
        with no_pipes(self.split.files):
            outputs = pipeline.hand_out(stream)
        if self._reader is None:
            return outputs
        return replace(outputs, loaded=self._reader.take(outputs.cpu_index.flatten().tolist()))

    def _batch(self, outputs: Outputs, epoch: int, start: int, share: float) -> Batch:
        indices = outputs.index.flatten().long()
        targets = outputs.loaded if self._reader is not None else self._targets.index_select(0, indices)
        views = [image.permute(0, 3, 1, 2) for image in outputs.views]
        shown = outputs.windows, lambda: self._orientations.of(outputs.cpu_index)
        drawn = epoch if self.plan.split == "train" else 0
        return self._maker.make(views, targets, indices, shown, epoch=drawn, start=start, share=share)
