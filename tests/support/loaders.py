"""Loaders with everything that has to be said of them as one list of arguments."""

from collections.abc import Sequence
from typing import Any

import torch

from augment.data.dataset import Split
from augment.pipeline.graph.decoding import OutputFormat, Placement
from augment.pipeline.graph.sample_order import Order
from augment.pipeline.loader import Loader
from augment.recipe.plan import Plan

CPU = torch.device("cpu")


def build_loader(
    plan: Plan,
    split: Split,
    *,
    device: torch.device = CPU,
    threads: int = 2,
    placement: Placement | None = None,
    classes: Sequence[str] = (),
    **options: Any,
) -> Loader:
    """Return a loader; options are those of `Order` and `OutputFormat`."""
    form = {name: options.pop(name) for name in ("half", "raw", "frames") if name in options}
    placed = (placement or Placement()).on(device, threads)
    return Loader(plan, split, Order(**options), placed, OutputFormat(**form), classes=classes)
