"""What a run knows of itself at its start, written down so that pages need neither its images nor its model."""

from __future__ import annotations

import math
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augment.support.files import installed_version
from augment.support.reading import contents, read_object
from trainer.models.registry import count_parameters

if TYPE_CHECKING:
    from trainer.loop.learner import Learner
    from trainer.run.config import Config

FACTS_FILE, ENVIRONMENT_FILE = "run.json", "environment.json"

_POINTS = 401  # of a schedule
_PACKAGES = ("nvidia-dali-cuda120", "torch", "torchmetrics", "timm", "hydra-core", "omegaconf", "numpy", "wandb")


@dataclass(frozen=True)
class Facts:
    """What a run knows at its start; what is empty is unknown."""

    task: str = ""
    classes: tuple[str, ...] = ()  # names of classes, labels or numbers
    # Number of different training images, of training samples in an epoch, and of validation images
    images: tuple[int, ...] = ()
    source: str = ""  # the source of the images, and the part of it that is used
    model: str = ""
    parameters: int = 0
    device: str = ""  # name of the GPU that it trains on, or CPU
    batches: tuple[int, ...] = ()  # number of training batches of each epoch
    # Values of each schedule over the whole fit, at equal distances
    schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def facts_of(config: Config, learner: Learner) -> Facts:
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
    )


def load_facts(file: Path) -> Facts:
    """Read facts, which may come from a stranger.

    Raises:
        UserError: they are damaged, or a link.
        OSError: there are none.
    """
    found = read_object(file)
    with contents(file):
        images, batches, parameters = found["images"], found["batches"], found["parameters"]
        schedules = {str(name): tuple(map(float, values)) for name, values in found["schedules"].items()}
        counts = [*images, *batches, parameters]
        finite = all(math.isfinite(value) for values in schedules.values() for value in values)
        if len(images) != 3 or not finite or not all(isinstance(n, int) and 0 <= n < 2**40 for n in counts):
            raise ValueError("other numbers than those of a run")
        return Facts(
            task=str(found["task"]),
            classes=tuple(map(str, found["classes"])),
            images=tuple(images),
            source=str(found["source"]),
            model=str(found["model"]),
            parameters=parameters,
            device=str(found["device"]),
            batches=tuple(batches),
            schedules={name: values for name, values in schedules.items() if values},
            warnings=tuple(map(str, found["warnings"])),
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
