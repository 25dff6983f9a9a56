"""The environment of a run: git revision, versions and devices."""

import platform
import subprocess
from pathlib import Path
from typing import Any

from augment.support.files import installed_version

ENVIRONMENT_FILE = "environment.json"

_PACKAGES = ("nvidia-dali-cuda120", "torch", "torchmetrics", "timm", "hydra-core", "omegaconf", "numpy", "wandb")


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
