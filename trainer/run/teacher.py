"""Distillation, `fit.teacher`: the model also learns the outputs of a trained model, the teacher.

The teacher sees the same augmented and mixed images as the model (Beyer et al. 2022, arXiv:2106.05237).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from augment.recipe.plan import build_plan
from augment.recipe.steps import Aug
from augment.support.errors import UserError
from augment.support.files import require_in
from augment.support.formatting import list_some, printable
from trainer.loop.checkpoint import BEST
from trainer.models.registry import check_model
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.run.config.schema import Config
from trainer.tasks.loss import ClassLoss, LossFunction, image_weights, weight_of

# For each image, (N,), the distance between the outputs of the model and of the teacher, (N, K) each. Classification
# uses the Kullback-Leibler divergence, and multi-label classification the mean cross entropy of its labels.
_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classify": lambda ours, theirs: F.kl_div(ours.log_softmax(1), theirs.softmax(1), reduction="none").sum(1),
    "multilabel": lambda ours, theirs: F.binary_cross_entropy_with_logits(
        ours, theirs.sigmoid(), reduction="none"
    ).mean(1),
}


def distill(config: Config, labels: LossFunction) -> LossFunction:
    """Return the loss of a run with a teacher. Without a teacher, return `labels`, the loss on the labels.

    The loss is the mean of `labels` and the distance from the teacher, weighted by `fit.teacher_weight`. In the
    distance, the outputs of both models are divided by the temperature T. The distance is multiplied by T squared, so
    that its gradients keep their size (Hinton et al. 2015, arXiv:1503.02531). Class weights apply to both parts.
    """
    fit, classes = config.fit, config.dataset.classes
    if fit.teacher is None:
        return labels
    trained, device = _load(config), fit.torch_device()
    teacher = trained.network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    columns = torch.tensor([trained.classes.index(name) for name in classes], device=device)
    (mean, std), (own_mean, own_std) = _normalization(trained.config.aug), _normalization(config.recipe)
    scale, shift = (own_std / std).to(device), ((own_mean - mean) / std).to(device)
    distance, temperature = _DISTANCES[trained.task.name], fit.teacher_temperature

    def loss(outputs: Tensor, targets: Tensor, images: Tensor) -> Tensor:
        with torch.no_grad(), fit.autocast(device):
            theirs = teacher(images * scale + shift).float()[:, columns]
        values = distance(outputs / temperature, theirs / temperature) * temperature**2
        weights = labels.weights if isinstance(labels, ClassLoss) else None
        each = torch.ones_like(values) if weights is None else image_weights(targets, weights)
        return torch.lerp(labels(outputs, targets), (values * each).sum() / each.sum(), fit.teacher_weight)

    loss.takes_images = True  # type: ignore[attr-defined]  # see `trainer.loop.batch_runner`
    loss.weight_of = partial(weight_of, labels)  # type: ignore[attr-defined]
    return loss  # type: ignore[return-value]


def check_teacher(config: Config) -> None:
    """Check that the teacher exists, and fits the task, classes and image sizes of a run.

    Raises:
        UserError: the teacher does not exist, or does not fit.
    """
    if config.fit.teacher is None:
        return
    teacher = Path(config.fit.teacher)
    require_in(teacher, BEST, key="fit.teacher=", allowed="the folder of a run with a best model")
    trained = _load(config)
    key = f"fit.teacher={config.fit.teacher} and aug.size"
    aug, classes = trained.config.aug, len(trained.classes)
    for _, _, size in config.fit.batches(config.aug.size):
        check_model(trained.config.model, classes, aug.size, channels=aug.pixels.channels, trial_size=size, key=key)


def _load(config: Config) -> LoadedModel:
    """Load the teacher with the plugins of the run, and check that it fits the data."""
    key, task, classes = f"fit.teacher={config.fit.teacher}", config.dataset.task, config.dataset.classes
    # Parsing checks that the number of processes divides the batch size, so take this run's batch size.
    own = [f"fit.batch_size={config.fit.batch_size}", "fit.gpus=null", "fit.stages=null"]
    own.append(f"plugins=[{','.join(config.resolved['plugins'])}]")
    trained = load_best_model(Path(str(config.fit.teacher)), own, data=False)
    if trained.task.name != task or task not in _DISTANCES:
        raise UserError(
            f"{key}: its task is {trained.task.name}, and the task of the data is {task}. Both must be the same, and "
            f"support distillation. Allowed: {', '.join(_DISTANCES)}."
        )
    theirs, ours = trained.config.aug.pixels, config.dataset.pixels
    if (theirs.channels, theirs.dtype) != (ours.channels, ours.dtype):
        raise UserError(
            f"{key}: it was trained on {theirs}, and the data has {ours}. Use a teacher with the same channels and "
            "data type."
        )
    if (theirs.low, theirs.high) != (ours.low, ours.high):
        raise UserError(f"{key}: it was trained with a different data.range. Use a teacher with the same data.range.")
    if missing := [printable(name) for name in classes if name not in trained.classes]:
        raise UserError(
            f"{key}: it does not predict the {trained.task.units} {list_some(missing, 3)} of the data, but "
            f"{list_some(map(printable, trained.classes), 3)}. Use a teacher that predicts all {trained.task.units} of "
            "the data."
        )
    return trained


def _normalization(aug: Aug) -> tuple[Tensor, Tensor]:
    """Return the mean and std that normalize images, (1, C, 1, 1) each."""
    plan = build_plan(aug, "val")
    return torch.tensor(plan.mean).view(1, -1, 1, 1), torch.tensor(plan.std).view(1, -1, 1, 1)
