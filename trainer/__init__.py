"""Train image models with a readable loop, callbacks and YAML configurations.

    from trainer import train

    summary = train("aug=imagenette", "fit.epochs=2")

Each name is imported at its first use, because PyTorch and DALI take seconds to import.
"""

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from augment.support.process import cores

if TYPE_CHECKING:
    from trainer.callbacks.recorder import Recorder
    from trainer.cli.single_run import train
    from trainer.loop.callback import (
        Callback,
        CancelBatch,
        CancelEpoch,
        CancelFit,
        CancelStep,
        CancelTrain,
        CancelValidate,
        Phase,
        RunDescription,
        configurable,
    )
    from trainer.loop.learner import Learner
    from trainer.loop.objective import Objective, recordable
    from trainer.loop.settings import LoopSettings
    from trainer.models.base import Model, model
    from trainer.optim.optimizers import optimizer
    from trainer.predictions.trained_model import TrainedModel, load_model
    from trainer.run.folder.summary import Summary
    from trainer.tasks.display import Prediction
    from trainer.tasks.loss import loss
    from trainer.tasks.metric import metric

__all__ = [
    "Callback",
    "CancelBatch",
    "CancelEpoch",
    "CancelFit",
    "CancelStep",
    "CancelTrain",
    "CancelValidate",
    "Learner",
    "LoopSettings",
    "Model",
    "Objective",
    "Phase",
    "Prediction",
    "Recorder",
    "RunDescription",
    "Summary",
    "TrainedModel",
    "configurable",
    "load_model",
    "loss",
    "metric",
    "model",
    "optimizer",
    "recordable",
    "train",
]

# By default, PyTorch's threads spin for milliseconds after each operation instead of leaving their cores to DALI. With
# this variable, two epochs of the built-in sample take 20.5 s of CPU time on two shared cores instead of 29.5 s (n =
# 3). The results stay the same. The variable must be set before PyTorch is imported.
if cores() <= 4:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The names that `__getattr__` imports, by module.
_MODULES = {
    "trainer.callbacks.recorder": "Recorder",
    "trainer.cli.single_run": "train",
    "trainer.loop.callback": (
        "Callback CancelBatch CancelEpoch CancelFit CancelStep CancelTrain CancelValidate Phase RunDescription "
        "configurable"
    ),
    "trainer.loop.learner": "Learner",
    "trainer.loop.objective": "Objective recordable",
    "trainer.loop.settings": "LoopSettings",
    "trainer.models.base": "Model model",
    "trainer.optim.optimizers": "optimizer",
    "trainer.predictions.trained_model": "TrainedModel load_model",
    "trainer.run.folder.summary": "Summary",
    "trainer.tasks.display": "Prediction",
    "trainer.tasks.loss": "loss",
    "trainer.tasks.metric": "metric",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("dali-trainer")
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'trainer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
