"""A plugin for the tests of ranks: a model without batch norm, and a callback that stops or kills one rank."""

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

from augment import Count, Text, setting
from augment.params import Size
from trainer import Callback, Model, configurable, model
from trainer.callbacks.optimizer_steps import Interrupt
from trainer.loop.learner import Learner


@model("flat")
@dataclass(frozen=True, kw_only=True)
class Flat(Model):
    """A linear layer, perhaps after batch norm and a dropout that draws from each rank's own generator."""

    dropout: int = setting(Count(default=0, within=(0, 1), doc="whether there are batch norm and dropout"))

    def build(self, classes: int, size: Size) -> nn.Module:
        """Build the network."""
        norm = nn.BatchNorm2d(3) if self.dropout else nn.Identity()  # its statistics differ between ranks until a step
        linear = nn.Linear(3 * size.height * size.width, classes)
        with torch.no_grad():
            linear.bias.copy_(int(os.environ.get("RANK", "0")) * torch.arange(classes))  # rank 0's counts
        return nn.Sequential(norm, nn.Flatten(), nn.Dropout(0.2 * self.dropout), linear)


@configurable
@dataclass(eq=False)
class Trouble(Callback):
    """Stops, kills or fails a rank after a training batch.

    The environment variable TROUBLE counts if it is set. Nothing happens after a restart by torchrun.
    """

    when: str = setting(Text(default="never", doc="what happens, on which rank, at which batch, as stop/1/3"))

    def after_batch(self, learner: Learner) -> None:
        """Make trouble."""
        kind = self._due(learner)
        if kind == "stop":
            learner.find(Interrupt).pressed = True
        elif kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "orphan":
            os.kill(os.getppid(), signal.SIGKILL)
        elif kind == "fail":
            torch.zeros(1).view(2)

    def _due(self, learner: Learner) -> str:
        kind, who, step = (os.environ.get("TROUBLE", self.when) + "//").split("/")[:3]
        ranks, again = learner.ranks, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        here = who in ("*", str(ranks.rank))
        return (
            kind if here and step == str(learner.progress.batches_done - 1) and learner.training and not again else ""
        )
