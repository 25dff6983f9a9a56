"""Checks of a configuration that need the data and the model; all run before anything is written."""

from augment.data.formats.folder import describe_nested
from augment.support.errors import UserError
from augment.support.text import amount
from trainer.models.registry import MODELS, check_model
from trainer.optim.optimizers import make_optimizer
from trainer.run.config import Config
from trainer.run.weights import check_weights, require_start
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
