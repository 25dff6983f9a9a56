"""Checks of a configuration that need the data and the model; all run before anything is written."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from augment.data.formats.folder import describe_nested
from augment.data.sources import Source
from augment.params import settings
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.nested import section_of
from augment.support.secrets import as_written
from augment.support.untrusted_files import contents
from trainer.loop.checkpoint import LAST, FitState, differing, load
from trainer.loop.progress import FitProgress
from trainer.loop.ranks import current
from trainer.models.registry import MODELS, check_model
from trainer.optim.optimizers import make_optimizer
from trainer.optim.settings import OptimizerSettings
from trainer.run.build import make_train_loader
from trainer.run.config.schema import Config, load_config
from trainer.run.folder.ownership import FINISHED
from trainer.run.folder.reader import RunFolder
from trainer.run.initial_weights import check_weights, require_start
from trainer.tasks.loss import check_loss
from trainer.tasks.metric import columns_of
from trainer.tasks.registry import ALL_MONITORED, check_metrics, check_views, task_named
from trainer.tasks.task import AUTO


def check_config(config: Config) -> None:
    """Check the device, data, model, callbacks and optimizer by trying them out.

    Raises:
        UserError: names the key path, what was given and what is allowed.
    """
    device = config.fit.torch_device()
    if config.fit.sync_batchnorm and (config.fit.gpus or 1) > 1 and device.type != "cuda":
        raise UserError("fit.sync_batchnorm: true, but PyTorch synchronizes batch norms on GPUs only. Allowed: false.")
    if config.fit.resume is None:
        require_start(config.model)
    dataset = config.dataset
    ranks = config.fit.gpus or 1
    for split, images in (("train", len(dataset.train)), ("val", len(dataset.val))):
        if ranks > max(images, 1):
            raise UserError(
                f"fit.gpus: {ranks}, but {split} has {amount(images, 'image')}. Allowed: at most one process per image."
            )
    classes = dataset.classes
    if dataset.task == "classify" and len(classes) == 1:
        given = config.resolved["data"]
        key = next(key for key in ("root", "train", "source") if given.get(key))
        raise UserError(
            f"data.{key}={given[key]}: holds a single class, {classes[0]}: nothing to learn from labels. Allowed: two "
            f"classes or more{describe_nested(dataset)}."
        )
    task = task_named(dataset.task)
    kind, needed = config.resolved["model"]["kind"], task.name if task.own_models else ""
    if config.model.task != needed:
        models = ", ".join(f"model={name}" for name, cls in MODELS.items() if cls.task == needed)
        raise UserError(
            f"model.kind={kind}: does not predict {task.kind.units}, which the data have. Allowed: {models}."
        )
    task.require()
    check_views(config.fit.tta, task)
    if config.fit.compile and task.own_loss:
        raise UserError(f"fit.compile: true, but models that predict {task.units} cannot be compiled. Allowed: false.")
    mixing = next((f"aug.train.{step.key}" for step in config.aug.train if step.mixes), "")
    check_loss(task, config.fit, len(classes), mixing=mixing, weighted=bool(dataset.train.weights))
    check_metrics(task, classes, config.fit.metrics)
    keys = [column.key for column in columns_of(task.measured(classes, None), val_loss=not task.own_loss)]
    allowed = (AUTO, *sorted(keys, key=lambda key: key.startswith("train_")))
    for name, values in config.resolved["callbacks"].items():
        monitor = values.get("monitor")
        if monitor in ALL_MONITORED and monitor not in allowed:
            raise UserError(
                f"callbacks.{name}.monitor: {monitor} is not measured for the task {dataset.task} "
                f"with {task.count(len(classes))}. Allowed: {', '.join(allowed)}."
            )
    size, outputs = config.aug.size, task.outputs(len(classes))
    network = check_model(config.model, outputs, size)
    if config.fit.resume is None:
        check_weights(config.model, network, classes, size)
    for stage in config.fit.full_stages(size):
        if stage.size != size:
            check_model(config.model, outputs, size, fed=stage.size, key=f"fit.stages.{stage.name}.size")
    for make in config.callbacks:
        make().check(network)
    make_optimizer(config.fit, network)
    config.fit.schedules()


def check_resume(config: Config) -> None:
    """Check, before anything is written, that the run named by `fit.resume` can be resumed.

    Raises:
        UserError: it has no checkpoint, has finished, or had a different plan, model, loss or optimizer.
    """
    if config.fit.resume is None:
        return
    run = Path(config.fit.resume)
    state, saved = load(run / LAST, FitState).on(current().rank), load_config(run)
    dataset, fit = config.dataset, config.fit
    loader = make_train_loader(config, dataset.train)
    epoch, epochs = state.position[0], FitProgress(fit, loader).epochs
    # After the last epoch, figures, the report and the summary may still have to be written.
    same_length = all(getattr(fit, name) == section_of(saved, "fit").get(name) for name in ("epochs", "steps"))
    unwritten = same_length and RunFolder(run).summary.status != FINISHED
    if epoch > epochs or (epoch == epochs and not unwritten):
        key = "fit.epochs" if fit.steps is None else "fit.steps"
        raise UserError(f"fit.resume={run}: that run has finished its {amount(epoch, 'epoch')}. Set a larger {key}.")
    if state.position[1] and state.ranks != (ranks := current().size):  # each rank has sums of its own
        raise UserError(
            f"fit.gpus: {ranks}, but {amount(state.ranks, 'process')} trained the unfinished epoch of the "
            f"run to resume. Allowed: {state.ranks}; after the end of an epoch, any number."
        )
    if state.position[1]:  # the batches since the last step are shares of a step of so many
        _check_same(config.fit, saved, "fit", ["accumulate"])
    task = task_named(dataset.task)
    _check_same(config.data, saved, "data", settings(Source))
    if task.monitor == "val_loss":  # by which the best epoch is chosen
        _check_same(config.fit, saved, "fit", task.loss_settings)
    if "stages" in state.loader and not config.fit.stages:
        raise UserError("fit.stages: missing, but the run to resume had stages. Allowed: the same stages.")
    with contents(run / LAST):
        loader.check_state(state.loader)
    with torch.device("meta"):
        network = config.model.untrained().build(task.outputs(len(dataset.classes)), config.aug.size)
    task.prepare(network, config.fit, dataset.train, dataset.classes)
    if name := differing(state.model, network):
        raise UserError(
            f"fit.resume={run}: its model had other weights ({name}). Allowed: the model and the classes of that run."
        )
    # The state of the optimizer holds its settings; schedules alone replace them.
    kept = [name for name in settings(OptimizerSettings) if name not in ("lr", *config.fit.schedules())]
    kept += ["momentum_low"] if config.fit.momentum_low is None else []
    _check_same(config.fit, saved, "fit", kept)


def _check_same(section: object, saved: Mapping[str, Any], key: str, names: Iterable[str]) -> None:
    """Check that the named settings of the section `key` are those of the saved run."""
    for name in names:
        param, now = settings(type(section))[name], getattr(section, name)
        was = section_of(saved, key).get(name, param.default)
        if was not in (now, as_written(now)):
            raise UserError(
                f"{key}.{name}: {param.show(now)}, but the run to resume had {param.show(was)}. Allowed: the same."
            )
