"""The type of learners, for annotations in modules that do not import PyTorch."""

from typing import TYPE_CHECKING, Any

__all__ = ["Learner"]

if TYPE_CHECKING:
    from trainer.loop.learner import Learner
else:
    Learner = Any
