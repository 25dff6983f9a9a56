"""Checks of a configuration that need the data and the model; all run before anything is written."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from augment.data.formats.folder import describe_nested
from augment.params import Size
from augment.support.errors import UserError
from augment.support.text import amount
from trainer.callbacks.freeze import keep_statistics
from trainer.models.registry import MODELS, check_model
from trainer.optim.optimizers import make_optimizer
from trainer.run.config import Config
from trainer.run.fit import Fit
from trainer.run.weights import check_weights, require_start
from trainer.tasks.loss import check_loss
from trainer.tasks.metric import columns_of
from trainer.tasks.registry import ALL_MONITORED, check_metrics, task_named
from trainer.tasks.task import AUTO, Task
from trainer.tasks.tta import check_views


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
    _check_task(config, task)
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
    callbacks = [make() for make in config.callbacks]
    for callback in callbacks:
        callback.check(network)
    frozen = {name for callback in callbacks for name in callback.frozen(network, config.fit.epochs - 1)}
    check_last_batch(config.fit, network, len(dataset.train), size, frozen=frozen)
    make_optimizer(config.fit, network)
    config.fit.schedules()


def _check_task(config: Config, task: Task[Any]) -> None:
    """Check that model, views and compiling are possible for a task."""
    kind, needed = config.resolved["model"]["kind"], task.name if task.own_models else ""
    if config.model.task != needed:
        allowed = ", ".join(f"model={name}" for name, cls in MODELS.items() if cls.task == needed)
        raise UserError(
            f"model.kind={kind}: does not predict {task.kind.units}, which the data have. Allowed: {allowed}."
        )
    task.require()
    check_views(config.fit.tta, task)
    if config.fit.compile and task.own_loss:
        raise UserError(f"fit.compile: true, but models that predict {task.units} cannot be compiled. Allowed: false.")


def check_last_batch(fit: Fit, network: nn.Module, samples: int, size: Size, *, frozen: Collection[str] = ()) -> None:
    """Check that no training batch is a single image on which the model's batch norm cannot train.

    No sample is left out silently: each is seen once an epoch unless `fit.drop_last` says otherwise.

    Args:
        fit: how to train.
        network: the network on the device "meta", as `trainer.models.registry.check_model` returns it.
        samples: number of samples in an epoch.
        size: that of the images, for stages without a size of their own.
        frozen: names of the parameters that are frozen to the end, whose batch norms keep their statistics.
    """
    ranks = fit.gpus or 1
    for key, batch_size, shown in fit.fed(size):
        full, rest = divmod(samples, batch_size)
        reached = fit.limit_batches is None or fit.limit_batches > full
        last = 1 <= rest < 2 * ranks and reached and not (fit.drop_last and full)
        if not (last or batch_size == ranks) or trains_on_single(network, shown, frozen):
            continue
        which = "every" if batch_size == ranks else "the last"
        part = "" if ranks == 1 else f" of one of {ranks} processes (fit.gpus)"
        raise UserError(
            f"{key}={batch_size}: of {amount(samples, 'sample')}, {which} batch{part} is a single image, on which the "
            f"model's batch norm cannot train at {shown} px. Allowed: a batch size that leaves at least two; or "
            "fit.drop_last=true, which leaves out an epoch's last few samples, others every time."
        )


def trains_on_single(network: nn.Module, size: Size, frozen: Collection[str] = ()) -> bool:
    """Return whether a network can be trained on a single image: batch norm needs at least two values per channel."""
    mode = network.training
    try:
        keep_statistics(network.train(), frozen)
        network(torch.empty(1, 3, *size, device="meta"))
    except (RuntimeError, AssertionError, ValueError) as error:
        return "more than 1 value per channel" not in str(error)
    finally:
        network.train(mode)
    return True
