"""What a run knows of itself at its start, written down so that pages need neither its images nor its model or task."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augment.support.files import installed_version
from augment.support.nested import leaves
from augment.support.secrets import as_written
from trainer.models.registry import count_parameters
from trainer.tasks.display import Display

if TYPE_CHECKING:
    from trainer.loop.learner import Learner
    from trainer.run.config import Config

FACTS_FILE, ENVIRONMENT_FILE = "run.json", "environment.json"

_POINTS = 401  # of a schedule
_SETTINGS = ("seed", "data.root", "fit.resume", "fit.schedule", "callbacks.checkpoint.monitor")
_PACKAGES = ("nvidia-dali-cuda120", "torch", "torchmetrics", "timm", "hydra-core", "omegaconf", "numpy", "wandb")


@dataclass(frozen=True)
class Facts:
    """What a run knows at its start; what is empty is unknown."""

    task: str = ""
    classes: tuple[str, ...] = ()  # names of classes, labels or numbers
    # Number of different training images, of training samples in an epoch, and of validation images
    images: tuple[int, int, int] | None = None
    source: str = ""  # the source of the images, and the part of it that is used
    model: str = ""
    parameters: int = 0
    device: str = ""  # name of the GPU that it trains on, or CPU
    batches: tuple[int, ...] = ()  # number of training batches of each epoch
    # Values of each schedule over the whole fit, at equal distances
    schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    # Up to 0.13, run.json had none of these
    display: Display | None = None  # what pages show of the task
    overrides: tuple[str, ...] = ()  # what it was started with, without leading plus signs
    settings: Mapping[str, Any] = field(default_factory=dict)  # see `page_settings`


def page_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a plain configuration that pages show or need, by their key paths."""
    return {key: value for key, value in leaves(config) if key in _SETTINGS}


def facts_of(config: Config, learner: Learner, overrides: Sequence[str]) -> Facts:
    """Return the facts of a run that is about to begin."""
    import torch

    dataset, device = config.dataset, learner.device
    positions = [i / (_POINTS - 1) for i in range(_POINTS)]
    return Facts(
        task=learner.task.name,
        classes=dataset.classes,
        images=(dataset.train.images, len(dataset.train), len(dataset.val)),
        source=", ".join(filter(None, (config.resolved["data"]["source"], config.data.part))),
        model=config.model_name,
        parameters=count_parameters(learner.model),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        batches=tuple(map(learner.batches_in, range(learner.epochs))),
        schedules={name: tuple(map(schedule, positions)) for name, schedule in config.fit.schedules().items()},
        warnings=dataset.notices,
        display=learner.task.display(dataset.classes),
        overrides=tuple(overrides),
        settings=page_settings(as_written(config.resolved)),
    )


def environment() -> dict[str, Any]:
    """Return the git revision, versions and devices: together with the configuration, enough to reproduce a run."""
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
