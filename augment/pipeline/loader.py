"""The loader, which reads a split epoch by epoch. It builds the DALI pipeline and restarts it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from augment.data.dataset import Split
from augment.data.images import portable_name
from augment.data.selection import take
from augment.data.targets.spatial import SpatialKind
from augment.pipeline.batch import Batch
from augment.pipeline.geometry.batch_assembly import BatchMaker, Mixer, TargetReader
from augment.pipeline.geometry.frames import Orientations
from augment.pipeline.graph.build import BuiltPipeline, Outputs, build_pipeline
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import Order, Reading
from augment.pipeline.graph.shard_prefetch import Stream
from augment.pipeline.loader_state import check_state, digest_of, pack_seen, restored, unpack_seen
from augment.pipeline.unreadable_images import reject_unreadable
from augment.recipe.plan import Plan
from augment.support.background import Background
from augment.support.errors import UserError
from augment.support.formatting import amount

T = TypeVar("T")


class Loader:
    """Iterates over a split, one epoch per pass.

    Breaking out of the loop ends the pass: the next iteration starts a new epoch, and the old iterator raises an error.
    After `load_state_dict`, iteration resumes at the saved position.

    Args:
        plan: the augmentation plan.
        split: the images and their targets.
        order: the batch size and the order of the samples.
        placement: where images are decoded and batches are made.
        form: the data type of the images, and additional outputs. Raw images are neither normalized nor mixed.
        classes: class names. A plan that mixes class indices needs them.

    Attributes:
        classes: names of the classes, labels or regression targets.

    Raises:
        UserError: there are fewer samples than ranks.
    """

    def __init__(
        self,
        plan: Plan,
        split: Split,
        order: Order,
        placement: Placement,
        form: OutputFormat | None = None,
        *,
        classes: Sequence[str] = (),
    ) -> None:
        self.plan, self.split = plan, split
        self.batch_size = order.batch_size
        self.classes = tuple(classes)
        self.placement = placement
        self._order, self._shard = order, order.shard
        self._form = form or OutputFormat()
        if len(split) < self._shard.world_size:
            raise UserError(
                f"data: {plan.split} has {amount(len(split), 'image')} for {amount(self._shard.world_size, 'rank')}. "
                "Use more images or fewer ranks."
            )
        self._reader: TargetReader | None = None
        self._targets = torch.empty(0)
        if isinstance(split.kind, SpatialKind):
            self._form = replace(self._form, frames=True)
            self._reader = TargetReader(split, placement.threads)
        else:
            self._targets = split.kind.collate(split.targets).to(placement.torch_device)
        self._files = digest_of(split)
        # Two kinds of loaders need a new pipeline for each pass. Validation must see the same random windows each time,
        # but a pipeline keeps drawing new ones. Without checkpoints, resuming repeats the batches since the pipeline
        # was built, so it must be built at the start of the epoch.
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
        self._primed = False  # whether the next batch is scheduled already
        self._prepared: Background[BuiltPipeline] | None = None
        self._process: int | None = None  # the process that built the pipeline
        self._consumed = 0  # DALI batches taken since the pipeline was built
        self._resuming = False
        self._seen: list[Tensor] = []  # the indices of this epoch's batches
        # If another number of ranks began this epoch: the indices of the remaining images, and a loader for them.
        self._rest: tuple[Tensor, Loader] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, if the pass continues."""
        return self._built_at + self._consumed // self._per_epoch

    @property
    def batch(self) -> int:
        """Number of the next batch in its epoch, if the pass continues. It is 0 after the last batch of an epoch."""
        return self._consumed % self._per_epoch

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        return self.epoch + (self._is_inside and not self._resuming)

    @property
    def samples(self) -> int:
        """Number of samples of this rank in an epoch."""
        return self._shard.samples(len(self.split))

    def __reduce__(self) -> NoReturn:
        raise UserError("A loader cannot be copied or sent to another process. Make a loader in that process.")

    def __repr__(self) -> str:
        size = f"{len(self.split):,} samples, {amount(len(self), 'batch')}"
        return f"Loader({self.plan.split}, {size}, {self.placement.torch_device})"

    def _repr_html_(self) -> str:
        """Draw the plan, for notebooks."""
        return f"<p>{escape(repr(self))}</p>{self.plan._repr_html_()}"

    def __len__(self) -> int:
        """Return the number of batches per epoch, which is the same on all ranks."""
        full, rest = divmod(len(self.split), self.batch_size * self._shard.world_size)
        return full + bool(rest and not (self._order.drop_last and full))

    def batches_in(self, epoch: int) -> int:
        return len(self)

    def images_in(self, epoch: int, first: int, batches: int) -> int:
        """Return the number of images in consecutive batches of an epoch, summed over all ranks."""
        return sum(self._shard.counts(len(self.split), first * self.batch_size, batches * self.batch_size))

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it after `load_state_dict`."""
        if self._process not in (None, os.getpid()):  # the pipeline's threads do not survive a fork
            raise UserError("This loader was used before the process was forked. Make a new loader in this process.")
        # A loader that resumes at the end of an epoch also restarts here, like a loader that was not interrupted.
        if (self._is_inside and not self._resuming) or self._is_spent:
            self._restart(self.next_epoch)
        self._resuming = False
        if self._rest is not None:
            yield from self._iterate_rest(*self._rest)
            return
        batches, epoch = len(self), self.epoch
        if not self.batch:
            self._seen = []
        for number in range(self.batch, batches):
            if (self.epoch, self.batch) != (epoch, number):
                raise UserError("This pass over the loader ended when another pass began. Run one pass at a time.")
            outputs = self._next()
            if number == batches - 1:
                # Also take the batch that drop_last leaves out, before the last yield. The epoch is then complete even
                # if the caller does not continue after that yield.
                for _ in range(self._per_epoch - batches):
                    self._next()
            start = number * self.batch_size
            counts = self._shard.counts(len(self.split), start, self.batch_size)
            own = counts[self._shard.rank]
            if own < self.batch_size:
                outputs = outputs.first(max(own, 1))  # synchronized batch norms need at least one sample
            batch = self._batch(outputs, epoch, start, own / sum(counts))
            self._seen.append(batch.indices)
            yield batch

    def _iterate_rest(self, left: Tensor, rest: "Loader") -> Iterator[Batch]:
        """Yield the images at the indices `left`: the rest of an epoch that another number of ranks began."""
        epoch = self.epoch
        for number, batch in enumerate(rest):
            indices = left.to(batch.indices.device)[batch.indices]
            self._seen.append(indices)
            self._consumed += 1
            if number == len(rest) - 1:
                self._restart(epoch + 1)  # before the last yield, as in `__iter__`
            yield replace(batch, indices=indices)

    def show_batch(self, count: int = 16, *, epoch: int | None = None) -> Image:
        """Draw the next batch as the model gets it. The loader keeps its position.

        Args:
            count: number of images, at most 32.
            epoch: draw the first batch of this epoch instead, counted from 0.
        """
        from augment.pipeline.notebook_display import batch_image  # imports Matplotlib

        shown = Loader(self.plan, self.split, self._order, self.placement, self._form, classes=self.classes)
        if epoch is None:
            shown.load_state_dict(self.state_dict())
        else:
            shown.start_at(epoch)
        title = f"{self.plan.split}, epoch {shown.epoch + 1}, batch {shown.batch + 1}, after augmentation"
        return batch_image(next(iter(shown)), count, self.plan, self.split.kind, self.classes, title)

    def prepare(self) -> None:
        """Start to build the next pass's pipeline in the background, unless the pass has one.

        The next pass then starts sooner. If the build fails, that pass raises the error.
        """
        if self._is_spent:
            self._restart(self.epoch)
        if self._rest is not None:
            self._rest[1].prepare()
        elif self._pipeline is None and self._prepared is None:
            self._prepared = Background(self._build)

    def start_at(self, epoch: int) -> None:
        """Make the next pass start at the given epoch. Validation always uses the random values of epoch 0."""
        self._resuming = False
        if self._consumed or self._built_at != epoch:
            self._restart(epoch)

    @property
    def identity(self) -> dict[str, Any]:
        """The values that determine the batches. A saved state must have equal values, except the number of ranks."""
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
        """End the current pass. The next pass starts a new epoch, even right after `load_state_dict`."""
        self._resuming = False
        if self._is_inside:
            self._restart(self.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position. A state has a few kilobytes, and in mid-epoch two more bits per image."""
        pipeline = self._pipeline if self.plan.checkpoints else None
        return self.identity | {
            "built_at": self._built_at,
            "consumed": self._consumed,
            "hw_decoder_load": self.placement.hw_decoder_load,
            "pipeline": None if pipeline is None else pipeline.checkpoint(),
            "left_out": self._left_out,
            "seen": pack_seen(self._seen, len(self.split)) if self._is_inside else "",
            "is_rest": self._rest is not None,
        }

    def load_state_dict(self, state: dict[str, Any], of_ranks: Sequence[dict[str, Any]] = ()) -> None:
        """Resume at the position that `state_dict` returned. The next pass yields exactly the rest of that epoch.

        A run with another number of ranks may have saved the state. The next pass then yields each image that is left
        in the epoch once, in a new order and with new random values. A state that was saved between two epochs may also
        come from a pipeline with other DALI operators.

        Args:
            state: the state of this rank, or of rank 0 if this rank did not exist.
            of_ranks: the states that all ranks saved at the same time. Default: only `state`.

        Raises:
            UserError: the loader that saved the state had other batches.
        """
        self.check_state(state)
        # An automatic choice could differ now, so restore the choice of the saved loader.
        if self.placement.load_auto:
            self.placement = replace(self.placement, hw_decoder_load=state["hw_decoder_load"])
        epoch = state["built_at"] + state["consumed"] // self._per_epoch
        taken = state["consumed"] % self._per_epoch
        if state["shard"][1] != self._shard.world_size or state.get("is_rest"):
            self._restart(epoch)
            if taken:
                self._take_rest(taken, [unpack_seen(each["seen"], len(self.split)) for each in of_ranks or [state]])
            return
        self._restart(state["built_at"])
        self._consumed = state["consumed"]
        self._seen = [unpack_seen(state.get("seen", ""), len(self.split))]
        checkpoint = state["pipeline"]
        restore_pipeline = partial(self._explained, partial(self._running, checkpoint))
        needs_no_pipeline = not self._consumed or (not self._is_inside and checkpoint is None)
        self._resuming = needs_no_pipeline or restored(restore_pipeline, inside=self._is_inside)
        if not self._resuming:
            self._restart(epoch)

    def _take_rest(self, taken: int, seen: list[Tensor]) -> None:
        """Make the next pass yield the images that no rank has seen in the first `taken` batches of this epoch."""
        left = np.setdiff1d(np.arange(len(self.split)), torch.cat(seen).numpy())
        left = np.resize(left, max(len(left), self._shard.world_size))  # each rank needs an image
        split = take(self.split, left)
        rest = Loader(self.plan, split, self._order, self.placement, self._form, classes=self.classes)
        rest.start_at(self.epoch)
        self._rest, self._seen = (torch.from_numpy(left), rest), seen
        self._consumed, self._resuming = taken, True

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a saved state belongs to a loader with the same batches.

        Raises:
            UserError: the batches differ. The message names the key that makes them differ.
        """
        check_state(state, self.identity, self._per_epoch, self._left_out)

    def close(self) -> None:
        """Free the pipeline's threads and memory. The next pass builds a new pipeline."""
        self._restart(self.epoch + self._is_inside)

    @property
    def _left_out(self) -> list[str]:
        return [portable_name(image.file) for image in self.split.left_out]

    @property
    def _is_inside(self) -> bool:
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
        self._seen, self._rest = [], None

    @property
    def _reading(self) -> Reading:
        most_samples = -(-len(self.split) // self._shard.world_size)
        return Reading(
            self.split.files,
            min(self.batch_size, most_samples),  # DALI would pad a larger batch
            self._order.seed,
            self._built_at,
            self._shard,
            self._reader.announce if self._reader is not None and self._reader.reads else None,
            self._stream,
            self.plan.pixels,
        )

    def _build(self, checkpoint: str | None = None) -> BuiltPipeline:
        self._process = os.getpid()
        pipeline = build_pipeline(self.plan, self._reading, self.placement, self._form, checkpoint)
        pipeline.schedule_run()  # the first call schedules all batches to prefetch
        return pipeline

    def _running(self, checkpoint: str | None = None) -> BuiltPipeline:
        """Return the pipeline, positioned at the loader's next batch.

        If it must be built, it starts at the checkpoint, or repeats all batches since `_built_at`.
        """
        if self._pipeline is None:
            prepared, self._prepared = self._prepared, None
            self._pipeline = prepared.result() if prepared else self._build(checkpoint)
            self._primed = True
            for _ in range(self._consumed if checkpoint is None else 0):
                self._run(self._pipeline)
        return self._pipeline

    def _next(self) -> Outputs:
        outputs = self._explained(lambda: self._run(self._running()))
        self._consumed += 1
        return outputs

    def _explained(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. If DALI cannot read an image, raise an error that names the image."""
        try:
            return work()
        except BaseException as error:
            # The pipeline has failed, or Ctrl-C has interrupted a batch. The error's traceback still refers to the
            # pipeline. If it were freed later as garbage, in one of its own threads, the process would abort.
            if self._pipeline is not None:
                self._pipeline.close()
                self._pipeline = None
            if isinstance(error, RuntimeError):
                reject_unreadable(error, self.split.files)
            raise

    def _run(self, pipeline: BuiltPipeline) -> Outputs:
        # On the GPU, PyTorch's stream waits for the batch, and this thread does not.
        stream = torch.cuda.current_stream(self.placement.gpu) if self.placement.device == "gpu" else None
        if self._primed:
            self._primed = False
        else:
            pipeline.schedule_run()
        outputs = pipeline.take_outputs(stream)
        if self._reader is None:
            return outputs
        return replace(outputs, loaded=self._reader.take(outputs.cpu_index.flatten().tolist()))

    def _batch(self, outputs: Outputs, epoch: int, start: int, share: float) -> Batch:
        indices = outputs.index.flatten().long()
        targets = outputs.loaded if self._reader is not None else self._targets.index_select(0, indices)
        views = [image.permute(0, 3, 1, 2) for image in outputs.views]
        crops = outputs.windows, lambda: self._orientations.of(outputs.cpu_index)
        drawn = epoch if self.plan.split == "train" else 0
        return self._maker.make(views, targets, indices, crops, epoch=drawn, start=start, share=share)
