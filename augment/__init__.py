"""Image augmentation with NVIDIA DALI, declared in YAML and fused into one warp and one color matrix.

    recipe = augment.load_recipe("imagenette", "aug.size=160")
    loader = augment.make_loader(recipe, data="folder", root=DIR, split="train", batch_size=256)
    for images, targets in loader: ...
    transform = augment.Transform(recipe, split="train")
    images = transform(batch)

Importing this package imports neither PyTorch nor DALI. Plugins import their decorators and types from this package.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augment.support.user_code import public

if TYPE_CHECKING:
    import torch

    from augment.cli.compose import Recipe
    from augment.data.dataset import Dataset, Split
    from augment.data.sources.registry import LabeledSource, Source, source
    from augment.data.targets.boxes import Boxes, Objects
    from augment.data.targets.combined import Several
    from augment.data.targets.keypoints import Keypoints
    from augment.data.targets.masks import MaskFile, Masks
    from augment.params import Channels, Choice, Count, Flag, Number, OptionMap, Param, Range, Text, Texts, setting
    from augment.pipeline.batch import Batch
    from augment.pipeline.loader import Loader
    from augment.pipeline.transform import Transform
    from augment.recipe.op import batch, color, crop, geometry, local, numpy_op, policy, remap, torch_op
    from augment.recipe.steps import SplitName
    from augment.support.errors import UserError

__all__ = [
    "Batch",
    "Boxes",
    "Channels",
    "Choice",
    "Count",
    "Dataset",
    "Flag",
    "Keypoints",
    "LabeledSource",
    "Loader",
    "MaskFile",
    "Masks",
    "Number",
    "Objects",
    "OptionMap",
    "Param",
    "PixelFormat",
    "Range",
    "Recipe",
    "Several",
    "Source",
    "Split",
    "Text",
    "Texts",
    "Transform",
    "UserError",
    "batch",
    "color",
    "crop",
    "geometry",
    "load_recipe",
    "local",
    "make_loader",
    "numpy_op",
    "policy",
    "remap",
    "setting",
    "source",
    "torch_op",
]

# Without this setting, small arrays and small images of uneven size can be corrupted on their way to the GPU. DALI may
# free their pinned buffer before the copy has ended. Set the variable before DALI is used.
os.environ.setdefault("DALI_RESTRICT_PINNED_MEM", "1")

# The decoder has more streams than the GPU's 8 default queues. Streams that share a queue with the model's stream wait
# for the model's kernels, so decoding would stop during training. Set the variable before CUDA is used.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# The module that declares each name, for `__getattr__`.
_MODULES = {
    "augment.cli.compose": "Recipe",
    "augment.data.dataset": "Dataset Split",
    "augment.data.targets.boxes": "Boxes Objects",
    "augment.data.targets.keypoints": "Keypoints",
    "augment.data.targets.masks": "MaskFile Masks",
    "augment.data.targets.combined": "Several",
    "augment.data.sources.registry": "LabeledSource Source source",
    "augment.params.pixel_format": "PixelFormat",
    "augment.params": "Channels Choice Count Flag Number OptionMap Param Range Text Texts setting",
    "augment.pipeline.batch": "Batch",
    "augment.pipeline.loader": "Loader",
    "augment.pipeline.transform": "Transform",
    "augment.recipe.op": "batch color crop geometry local numpy_op policy remap torch_op",
    "augment.support.errors": "UserError",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("dali-trainer")
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'augment' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__


@public
def load_recipe(recipe: "str | Path | Mapping[str, Any]", *overrides: str, **misspelled: object) -> "Recipe":
    """Compose and check a recipe.

    Args:
        recipe: the name of a file in conf/aug, the path to a YAML file, or the recipe itself as a mapping.
        overrides: overrides as on the command line, such as "aug.size=160".
        misspelled: collects unknown keyword arguments, which raise a UserError.

    Raises:
        UserError: an unknown name, key or op, or an invalid value.
    """
    from augment.cli.compose import compose_recipe, keys_of
    from augment.cli.config_files import read_config
    from augment.cli.overrides import reject_keywords
    from augment.recipe.steps import Aug, unit_notices
    from augment.support.errors import UserError

    reject_keywords(misspelled, keys_of("aug", [Aug]))
    given: object = recipe
    if not isinstance(given, str | Path | Mapping):
        raise UserError(
            f"recipe: {recipe!r} is not allowed. Pass the name of a file in conf/aug, the path to a YAML file, or a "
            "mapping."
        )
    if isinstance(recipe, str) and "/" not in recipe and not recipe.endswith((".yaml", ".yml")):
        composed = compose_recipe([f"+aug={recipe}", *overrides])
    else:
        composed = compose_recipe(overrides, read_config(Path(recipe)) if isinstance(recipe, str | Path) else recipe)
    for note in unit_notices(composed.aug):
        logging.getLogger(__name__).warning("%s", note)
    return composed


@public
def make_loader(
    recipe: "Recipe",
    data: str | None = None,
    *,
    split: "SplitName" = "train",
    batch_size: int = 64,
    device: "torch.device | str" = "auto",
    seed: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    drop_last: bool = False,
    half: bool = False,
    threads: int | None = None,
    **settings: Any,
) -> "Loader":
    """Create the loader for one split of a dataset.

    Args:
        recipe: a recipe from `load_recipe`.
        data: the name of a source or of a conf/data file. Default: the source in the recipe's overrides.
        split: train or val.
        batch_size: number of samples per batch. The last batch of an epoch may be smaller.
        device: the device that computes and holds the batches, "cuda" or "cpu". "auto" uses the GPU if there is one.
        seed: seed for the shuffle and the sampled parameters. Default: the recipe's seed.
        rank: rank of this process among the processes that share an epoch.
        world_size: number of processes that share an epoch.
        drop_last: leave out the smaller last batch, unless it is the only one.
        half: return float16 instead of float32.
        threads: number of CPU threads. Default: one per core, at most 16.
        settings: the source's settings, named like `data.*` on the command line, such as `root=DIR`. With
            data="own", train and val may also be objects, such as a PyTorch Dataset.

    Raises:
        UserError: an unknown source or setting, an invalid value, or unusable data.
    """
    from augment.cli.compose import with_data
    from augment.data.format_detection import measured
    from augment.data.sources import LOADED, load_dataset
    from augment.pipeline.arguments import check_arguments, reject_misspelled, torch_device, warn_of_ranks
    from augment.pipeline.graph.decoding import OutputFormat
    from augment.pipeline.graph.device_placement import place
    from augment.pipeline.graph.sample_order import Order, RankShard
    from augment.pipeline.loader import Loader
    from augment.recipe.plan import build_plan
    from augment.recipe.steps import border_notices
    from augment.support.errors import UserError
    from augment.support.process import cores

    numbers = {"batch_size": batch_size, "rank": rank, "seed": seed, "threads": threads, "world_size": world_size}
    check_arguments(recipe, drop_last=drop_last, half=half, **numbers)
    if rank >= world_size:
        raise UserError(f"rank: {rank} of world_size={world_size} is not allowed. Allowed: 0 to {world_size - 1}.")
    named: object = data
    if not isinstance(named, str | None) or "/" in (named or ""):
        shown = repr(named) if isinstance(named, str | Path) else type(named).__name__
        raise UserError(
            f"data: {shown} is not allowed. Pass the name of a source, such as data='folder', root=DIR. For a Dataset, "
            "use data='own', train=DATASET."
        )
    placed = torch_device(device)
    try:
        source = with_data(recipe, data, settings).source()
    except UserError:
        reject_misspelled(settings, make_loader.__annotations__.keys() - {"settings", "return"})
        raise
    LOADED.clear()
    dataset = load_dataset(source, needs_val=False)
    if split == "val" and not len(dataset.val):
        dataset = load_dataset(source)  # raises the error about the missing validation split
    chosen = dataset.train if split == "train" else dataset.val
    pixels = measured(dataset, recipe.aug.mean, recipe.aug.std)
    plan = build_plan(replace(recipe.aug, pixels=pixels), split)
    for note in border_notices(recipe.aug, chosen.kind.unrepeated):
        logging.getLogger(__name__).warning("%s", note)
    if split == "train":
        warn_of_ranks(rank=rank, world_size=world_size)
    return Loader(
        plan,
        chosen,
        Order(batch_size, recipe.seed if seed is None else seed, RankShard(rank, world_size), drop_last),
        place(recipe.aug, chosen.files, placed, threads=threads or min(16, cores())),
        OutputFormat(half),
        classes=dataset.classes,
    )
