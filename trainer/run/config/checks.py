"""Checks of a configuration that need the data and the model. All run before anything is written."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from augment.cli.config_files import config_files
from augment.data.formats.folder import describe_nested
from augment.data.sources import Source, load_dataset
from augment.data.targets.boxes import BOXES
from augment.params import settings
from augment.recipe.plan import build_plan
from augment.recipe.steps import SPLITS
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.nested import section_of
from augment.support.untrusted_files import explained_damage
from trainer.loop.checkpoint import LAST, FitState, first_difference, load
from trainer.loop.progress import FitProgress
from trainer.loop.ranks import current
from trainer.models.lora import base_state
from trainer.models.registry import MODELS, build_network, check_model
from trainer.optim.optimizers import make_optimizer
from trainer.optim.settings import OptimizerSettings
from trainer.run.build import make_train_loader
from trainer.run.config.schema import Config, check_same, load_config
from trainer.run.folder.reader import RunFolder
from trainer.run.folder.summary import FINISHED
from trainer.run.initial_weights import check_weights, read_base, require_start
from trainer.run.teacher import check_teacher
from trainer.tasks.metric import columns_of
from trainer.tasks.registry import ALL_MONITORED, check_metrics, check_views, task_named
from trainer.tasks.task import AUTO, Task
from trainer.tasks.trial import check_loss, check_own_metrics


def check_config(config: Config) -> None:
    """Check the device, data, model, callbacks and optimizer by trying them out.

    Raises:
        UserError: the first mistake, with its key.
    """
    fit, task = config.fit, task_named(config.dataset.task)
    device = fit.torch_device()
    if fit.sync_batchnorm and (fit.gpus or 1) > 1 and device.type != "cuda":
        raise UserError("fit.sync_batchnorm=true works only on GPUs. Set it to false.")
    if fit.resume is None:
        require_start(config.model)
    _check_data(config)
    for split in SPLITS:
        build_plan(config.recipe, split)
    _check_kind_of_model(config, task)
    check_views(fit.tta, task)
    if fit.compile and task.own_loss:
        raise UserError(f"fit.compile=true does not work with models that predict {task.kind.units}. Set it to false.")
    classes = config.dataset.classes
    mixing = next((f"aug.train.{step.key}" for step in config.aug.train if step.mixes), "")
    check_loss(task, fit, len(classes), mixing=mixing, weighted=bool(config.dataset.train.weights))
    check_metrics(task, classes, fit.metrics, config.model)
    check_own_metrics(task, task.measured(classes, config.asked_metrics, config.model), len(classes))
    check_teacher(config)
    _check_monitors(config, task)
    network = _check_network(config, task)
    for make in config.callbacks:
        make().check(network)
    make_optimizer(fit, network)
    fit.schedules()


def _check_data(config: Config) -> None:
    dataset = config.dataset
    if config.data.gives_test and config.fit.resume is None:
        load_dataset(config.data.with_test())  # checked now, although only `evaluate` uses the test split
    if dataset.task == "classify" and len(dataset.classes) == 1:
        given = config.resolved["data"]
        key = next(key for key in ("root", "train", "source") if given.get(key))
        raise UserError(
            f"data.{key}={given[key]}: there is only one class, {dataset.classes[0]}, so there is nothing to learn. "
            f"Training needs two classes or more{describe_nested(dataset)}."
        )


def _check_kind_of_model(config: Config, task: Task[Any]) -> None:
    if config.model.task != task.model_task:
        recipes = config_files("aug")
        recipe = task.name if task.model_task or task.name in recipes else "imagenette"
        choices = [f"aug={recipe}"] if recipe in recipes else []
        choices += [f"model={name}" for name, cls in MODELS.items() if cls.task == task.model_task]
        kind = config.resolved["model"]["kind"]
        raise UserError(
            f"model.kind={kind}: this model does not predict {task.kind.units}, which the data needs. Choose "
            f"{' or '.join(choices)}."
        )
    if getattr(config.model, "masks", False) and BOXES.unmasked(config.dataset.train.targets):
        raise UserError(
            "model.name: this model learns masks, but the data has none. Set "
            "data.instances=true, or choose another model.name."
        )
    task.require()


def _check_monitors(config: Config, task: Task[Any]) -> None:
    classes = config.dataset.classes
    columns = columns_of(task.measured(classes, None, config.model), val_loss=not task.own_loss)
    keys = [column.key for column in columns]
    allowed = (AUTO, *sorted(keys, key=lambda key: key.startswith("train_")))
    for name, values in config.resolved["callbacks"].items():
        monitor = values.get("monitor")
        if monitor not in ALL_MONITORED or monitor in allowed:
            continue
        single = task.measured(classes, (monitor,), config.model)  # perhaps a per-class metric
        if monitor not in {column.key for column in columns_of(single, val_loss=not task.own_loss)}:
            raise UserError(
                f"callbacks.{name}.monitor: {monitor} is not measured for the task {task.name} "
                f"with {task.count(len(classes))}. Allowed: {', '.join(allowed)}."
            )


def _check_network(config: Config, task: Task[Any]) -> nn.Module:
    """Check the model at all image sizes, and its initial weights. Return the model."""
    size, classes = config.aug.size, config.dataset.classes
    outputs, channels = task.outputs(len(classes)), config.dataset.pixels.channels
    check = partial(check_model, config.model, outputs, size, channels=channels)
    network = check()
    if config.fit.resume is None:
        check_weights(config.model, network, classes, size)
    config.model.adapt(network)
    for stage in config.fit.full_stages(size):
        if stage.size != size:
            check(trial_size=stage.size, key=f"fit.stages.{stage.name}.size")
    return network


def check_resume(config: Config) -> None:
    """Check that the run that `fit.resume` names can be resumed.

    Raises:
        UserError: that run has no checkpoint, has finished, or had a different plan, model, loss or optimizer.
    """
    if config.fit.resume is None:
        return
    run = Path(config.fit.resume)
    with explained_damage(run / LAST):
        state = load(run / LAST, FitState).for_rank(current().rank)
    saved = load_config(run)
    fit, task = config.fit, task_named(config.dataset.task)
    loader = make_train_loader(config, config.dataset.train)
    _check_epochs_left(config, run, saved, done=state.position[0], epochs=FitProgress(fit, loader).epochs)
    if state.position[1]:
        state.check_ranks(current().size)
        check_same(fit, saved, "fit", ["accumulate"])  # the checkpoint may hold a part of a step's gradients
    check_same(config.data, saved, "data", settings(Source))
    if task.monitor == "val_loss":  # with other loss settings, losses of old and new epochs could not be compared
        check_same(fit, saved, "fit", task.loss_settings)
    if "stages" in state.loader and not fit.stages:
        raise UserError("fit.stages is missing, but the resumed run had stages. Set the same stages.")
    with explained_damage(run / LAST):
        try:
            loader.check_state(state.loader)
        except UserError:
            check_same(config.aug, saved, "aug", ("size", "mean", "std", "clip", "fuse"))
            raise
    _check_saved_weights(config, run, task, state.model)
    # The saved state of the optimizer also restores its settings. Only schedules change them afterwards.
    kept = [name for name in settings(OptimizerSettings) if name not in ("lr", *fit.schedules())]
    kept += ["momentum_low"] if fit.momentum_low is None else []
    check_same(fit, saved, "fit", kept)


def _check_epochs_left(config: Config, run: Path, saved: Mapping[str, Any], *, done: int, epochs: int) -> None:
    """Check that a saved run has epochs left, or lacks figures, the report or the summary after its last epoch."""
    fit = config.fit
    same_length = all(getattr(fit, name) == section_of(saved, "fit").get(name) for name in ("epochs", "steps"))
    unwritten = same_length and RunFolder(run).summary.status != FINISHED
    if done > epochs or (done == epochs and not unwritten):
        key = "fit.epochs" if fit.steps is None else "fit.steps"
        raise UserError(f"fit.resume={run}: that run has finished {amount(done, 'epoch')}. To continue, raise {key}.")


def _check_saved_weights(config: Config, run: Path, task: Task[Any], weights: Mapping[str, Tensor]) -> None:
    """Check that the weights in a checkpoint fit the configured model."""
    dataset = config.dataset
    with torch.device("meta"):
        outputs = task.outputs(len(dataset.classes))
        network = build_network(config.model.untrained(), outputs, config.aug.size, dataset.pixels.channels)
    config.model.adapt(network)
    base = read_base(run) if base_state(network) else {}
    task.prepare(network, config.fit, dataset.train, dataset.classes)
    if name := first_difference({**base, **weights}, network):
        raise UserError(
            f"fit.resume={run}: the weights of that run do not fit this model ({name}). Use the same model and the "
            "same classes."
        )
