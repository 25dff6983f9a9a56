"""What a run records at its start: facts for its report and for dashboards, versions, devices and COCO ids."""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augment.data.dataset import Dataset
from augment.data.images import portable_names
from augment.support.files import installed_version
from trainer.loop.lazy_learner import Learner
from trainer.models.registry import count_parameters
from trainer.run.config.schema import Config
from trainer.tasks.display import Display

FACTS_FILE, ENVIRONMENT_FILE, IDS_FILE = "run.json", "environment.json", "coco_ids.json"

_POINTS = 401  # recorded values of a schedule
_PACKAGES = ("nvidia-dali-cuda120", "torch", "torchmetrics", "timm", "hydra-core", "omegaconf", "numpy", "wandb")


@dataclass(frozen=True)
class Facts:
    """The facts that are known when a run starts. A field is empty if it is unknown or has no values."""

    task: str = ""
    classes: tuple[str, ...] = ()  # the names of the model's outputs
    # The numbers of distinct training images, of training samples per epoch, and of validation images
    images: tuple[int, int, int] | None = None
    source: str = ""  # the source of the images, the selected part, and their pixel format unless it is RGB
    model: str = ""
    parameters: int = 0
    device: str = ""  # the name of the GPU, or CPU, and the number of processes if there are several
    batches: tuple[int, ...] = ()  # the number of training batches in each epoch
    # The values of each schedule, equally spaced over the whole fit
    schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    display: Display | None = None  # how reports and dashboards show the task


def facts_of(config: Config, learner: Learner) -> Facts:
    """Collect the facts of a run that is about to start."""
    import torch

    dataset, device = config.dataset, learner.device
    form = "" if dataset.pixels.is_rgb else str(dataset.pixels)
    positions = [i / (_POINTS - 1) for i in range(_POINTS)]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Facts(
        task=learner.task.name,
        classes=dataset.classes,
        images=(dataset.train.images, len(dataset.train), len(dataset.val)),
        source=", ".join(filter(None, (config.resolved["data"]["source"], config.data.selection, form))),
        model=config.model_name,
        parameters=count_parameters(learner.model),
        device=f"{name}, {ranks} processes" if (ranks := learner.ranks.size) > 1 else name,
        batches=tuple(map(learner.progress.batches_in, range(learner.progress.epochs))),
        schedules={name: tuple(map(schedule, positions)) for name, schedule in config.fit.schedules().items()},
        warnings=dataset.notices,
        display=learner.task.display(dataset.classes, config.asked_metrics),
    )


def environment() -> dict[str, Any]:
    """Collect the git revision, versions and devices. With the configuration, they make a run reproducible."""
    import torch

    versions = {package: installed_version(package) for package in _PACKAGES}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"git": _git_revision(), "python": platform.python_version(), "packages": versions, "gpus": gpus}


def _git_revision() -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return {"revision": git("rev-parse", "HEAD"), "modified": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


# The COCO ids of "images" by path and of "categories" by name. With them, predictions use the ids of the annotations.
Ids = Mapping[str, Mapping[str, Any]]


def ids_of(dataset: Dataset) -> Ids:
    """Return the COCO ids of a dataset's classes and validation images, or {} without COCO annotations."""
    if not dataset.class_ids:
        return {}
    names = portable_names(dataset.val.files)
    images = dict(zip(names, (getattr(target, "image_id", 0) for target in dataset.val.targets), strict=True))
    return {"categories": dataset.class_ids, "images": images}
