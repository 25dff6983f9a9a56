"""Load the best model of a run, and run it on images as validation does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augment.cli.overrides import key_of, normalize, parse
from augment.cli.trust import Saved
from augment.data.dataset import Split
from augment.data.rasters import in_format
from augment.data.sources.registry import PIXEL_SETTINGS
from augment.recipe.plan import Plan, build_plan
from augment.support.errors import UserError
from augment.support.lazy_torch import Tensor, nn, torch
from augment.support.nested import section_of
from augment.support.untrusted_files import explained_damage
from trainer.loop.callback import Callback, RunDescription, sort_callbacks
from trainer.loop.checkpoint import BEST, BestModel, first_difference, load
from trainer.loop.lazy_learner import Learner
from trainer.loop.settings import LoopSettings
from trainer.models.registry import build_network
from trainer.run.config.schema import CONFIG_FILE, Config, load_config, parse_config
from trainer.run.failures import explained
from trainer.run.hub import HUB_FOLDER
from trainer.tasks.registry import check_views, task_named
from trainer.tasks.task import Task

if TYPE_CHECKING:
    from augment.pipeline.graph.decoding import Placement
    from augment.pipeline.loader import Loader


class KeptOutputs(Callback):
    """Keeps the outputs of a pass on the device, and any frames, see `Task.frames_of`."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, ...]] = []

    def after_batch(self, learner: Learner) -> None:
        """Append a copy of the batch's outputs, because the next batch may overwrite them."""
        frames = learner.task.frames_of(learner.batch)
        kept = learner.batch.indices.clone(), learner.output.clone()
        self._kept.append(kept if frames is None else (*kept, frames))

    def in_order(self) -> list[Tensor]:
        """Return the outputs and any frames of the whole pass as CPU tensors, in the order of the split's files."""
        indices, *parts = (torch.cat(kept).cpu() for kept in zip(*self._kept, strict=True))
        order = indices.argsort()
        return [part[order] for part in parts]


class _Finite(Callback):
    """Records whether any output of a pass is nan or inf. Converting `wrong` to a bool waits for the device."""

    def __init__(self) -> None:
        self.wrong: Tensor | None = None

    def after_batch(self, learner: Learner) -> None:
        """Check the outputs without waiting for the device."""
        wrong = ~(learner.output < torch.inf).all()  # -inf only rules out a class
        self.wrong = wrong if self.wrong is None else self.wrong | wrong


@dataclass(frozen=True)
class LoadedModel:
    """The best model of a run, with the configuration of the run."""

    config: Config  # the run's configuration, with overrides
    classes: tuple[str, ...]  # the names of the model's outputs
    network: nn.Module
    task: Task[Any]
    run: Path  # the run's folder
    thresholds: tuple[float, ...] = ()  # see `trainer.loop.checkpoint.BestModel`

    @property
    def used_thresholds(self) -> tuple[float, ...]:
        """The lowest probability with which predictions list each class or label by default."""
        return self.thresholds or (self.task.threshold or 0.0,) * len(self.classes)

    def run_over(self, split: Split, *callbacks: Callback, description: str, frames: bool = False) -> None:
        """Make one pass over images with the plan, precision and test-time augmentation of validation.

        With `frames`, all batches have frames, see `Task.frames_of`.
        """
        from trainer.callbacks.progress import PassBar
        from trainer.run.build import session

        loader = self.loader(split, frames=frames)
        with session(self.config), explained(self.config, training=False), PassBar(description, len(loader)) as bar:
            self.validate(loader, *callbacks, bar)

    def loader(
        self, split: Split, plan: Plan | None = None, placement: Placement | None = None, *, frames: bool = False
    ) -> Loader:
        """Make a loader of validation batches, by default with the run's plan."""
        from trainer.run.build import make_loader

        plan = plan or build_plan(self.config.aug, "val")
        split = in_format(split, plan.pixels)
        return make_loader(self.config, plan, split, placement, classes=self.classes, frames=frames)

    def validate(self, loader: Loader, *callbacks: Callback) -> None:
        """Make one pass over a loader. Call this within `trainer.run.build.session`.

        Raises:
            UserError: the model predicts nan or inf.
        """
        self.validator(loader)(loader, *callbacks)

    def validator(self, loader: Loader, *, graph: bool = False) -> Callable[..., None]:
        """Return a function like `validate` that uses the same learner for all its passes.

        With `graph`, the learner records the model as a CUDA graph on a GPU. This takes a second, and later batches of
        the same shape run faster.
        """
        from trainer.loop.learner import Learner
        from trainer.loop.objective import Objective
        from trainer.optim.optimizers import make_optimizer

        fit = self.config.fit
        _, loss = self.task.make_losses(fit, self.network, fit.torch_device())
        learner = Learner(
            self.network,
            loader,
            loader,
            LoopSettings(epochs=1, device=fit.device, precision=fit.precision, graph=graph, tta=fit.tta),
            optimizer=partial(make_optimizer, fit),
            objective=Objective(self.task, loss),
            run=RunDescription(classes=tuple(self.classes)),
        )

        def validate(loader: Loader, *callbacks: Callback) -> None:
            finite = _Finite()
            learner.val_loader, learner.callbacks = loader, sort_callbacks([*callbacks, finite])
            learner.validate()
            if finite.wrong is not None and finite.wrong:
                raise _not_numbers(self.run, "the model predicts nan or inf")

        return validate


def load_best_model(
    run: Path, overrides: Sequence[str] = (), *, tta: str | None = None, trust: bool = False, data: bool = True
) -> LoadedModel:
    """Load the best model of a run. This does not need the run's data.

    Args:
        run: folder of the run.
        overrides: `key=value` overrides of the run's configuration.
        tta: test-time augmentation, a name of `trainer.loop.settings.TTA`. Default: the run's setting.
        trust: whether the folder may name code to import, see `augment.cli.trust`.
        data: whether the caller will load the run's images.

    Raises:
        UserError: the folder holds no run or checkpoint, an override is not allowed, or the checkpoint belongs to
            another model.
    """
    given = normalize([*overrides, *([] if tta is None else [f"fit.tta={tta}"])])
    config = _config_of(run, given, trust=trust, data=data)
    best = load(run / BEST, BestModel)
    if best.pixels:
        pixels, keys = best.pixel_format, {key_of(parse(token)) for token in given}
        used = {name: getattr(pixels, name) for name in ("mean", "std") if f"aug.{name}" not in keys}
        config = replace(config, aug=replace(config.aug, pixels=pixels, **used))
    task = task_named(best.task)
    if config.model.task != task.model_task:
        raise UserError(
            f"{run / BEST}: its task is {task.name}, but the configured model is for another task. Restore the run's "
            "files."
        )
    check_views(config.fit.tta, task)
    network = _network_of(run, config, task, best)
    return LoadedModel(config, best.classes, network, task, run, tuple(best.thresholds))


def _config_of(run: Path, given: Sequence[str], *, trust: bool, data: bool) -> Config:
    """Return the configuration of a run with overrides, without callbacks and initial weights."""
    fixed = {"fit.limit_batches", *(f"data.{name}" for name in PIXEL_SETTINGS)}  # the model stores its pixel format
    keys = [key_of(parse(token)) for token in given]
    for key in keys:
        if key.startswith("hydra") or key in fixed:
            raise UserError(f"{key}: has no effect here. Remove it.")
    if data and run.parent == HUB_FOLDER and not any(key.partition(".")[0] == "data" for key in keys):
        raise UserError(f"{run}: runs on the hub have no data. Pass a folder of images, or data=folder data.root=DIR.")
    loaded = load_config(run)
    # The checkpoint holds all weights. Callbacks are not needed, and may come from a plugin.
    for section, name in (("model", "weights"), ("fit", "resume"), ("fit", "teacher")):
        loaded[section] = {**section_of(loaded, section), name: None}
    loaded["callbacks"] = {}
    if not data:  # so that a stranger's folder cannot choose a file to read
        loaded["data"] = {**section_of(loaded, "data"), "labels": None}
    saved = Saved(loaded, run / CONFIG_FILE, trust=trust, data=data, starts=False)
    return parse_config(saved.with_overrides(given))


def _network_of(run: Path, config: Config, task: Task[Any], best: BestModel) -> nn.Module:
    """Return the configured network with the weights in best.pt.

    Raises:
        UserError: the weights do not fit the network, or contain nan.
    """
    # Compare on the meta device first, because a stranger's folder may name a model that does not fit in memory.
    for shapes in (torch.device("meta"), nullcontext()):
        with shapes:
            outputs = task.outputs(len(best.classes))
            network = build_network(config.model.untrained(), outputs, config.aug.size, config.aug.pixels.channels)
            with explained_damage(run / BEST):
                task.restore(network, best.model)
        if name := first_difference(best.model, network):
            raise UserError(f"{run / BEST}: these are not the configured model's weights ({name}). Restore the file.")
    network.load_state_dict(best.model)
    for name, tensor in network.state_dict().items():
        if tensor.isnan().any():
            raise _not_numbers(run, f"{name} holds nan")
    return network


def _not_numbers(run: Path, why: str) -> UserError:
    return UserError(
        f"{run / BEST}: the model cannot be used: {why}. Train it again with a lower fit.lr or fit.precision=fp32."
    )
