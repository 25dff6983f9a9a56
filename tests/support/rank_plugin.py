"""A plugin for the tests of ranks: a model without batch norm, and a callback that stops or kills one rank."""

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn

from augment import Count, Text, setting
from trainer import Callback, Model, configurable, model
from trainer.callbacks.interrupt import Interrupt
from trainer.loop.learner import Learner


@model("flat")
@dataclass(frozen=True, kw_only=True)
class Flat(Model):
    """A linear layer, perhaps after batch norm and a dropout that draws from each rank's own generator."""

    dropout: int = setting(Count(default=0, within=(0, 1), doc="whether there are batch norm and dropout"))

    def build(self, classes: int, size: int) -> nn.Module:
        """Build the network."""
        norm = nn.BatchNorm2d(3) if self.dropout else nn.Identity()  # its statistics differ between ranks until a step
        return nn.Sequential(norm, nn.Flatten(), nn.Dropout(0.2 * self.dropout), nn.Linear(3 * size * size, classes))


@configurable
@dataclass(eq=False)
class Trouble(Callback):
    """Stops, kills or fails one rank after a training batch, as the environment variable TROUBLE says if it is set.

    Not after a restart by torchrun.
    """

    when: str = setting(Text(default="never", doc="what happens, on which rank, after which batch, as stop/1/3"))

    def after_batch(self, learner: Learner) -> None:
        """Make trouble."""
        kind, who, step = (os.environ.get("TROUBLE", self.when) + "//").split("/")[:3]
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        here = who in ("*", str(learner.ranks.rank)) and step == str(learner.step)
        if again or not here or not learner.training:
            return
        if kind == "stop":
            learner.find(Interrupt).pressed = True
        elif kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            torch.zeros(1).view(2)
