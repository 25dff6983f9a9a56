"""Settings of the xresnet family. `trainer.models.xresnet` builds networks from them."""

from dataclasses import dataclass

from augment.params import Choice, Count, Flag, Number, setting
from trainer.models.base import Model


@dataclass(frozen=True, kw_only=True)
class XresnetSettings(Model):
    """Settings of an xresnet."""

    depth: str = setting(
        Choice(default="50", options=("18", "26", "34", "50"), doc="number of layers. 26 and 50 have bottleneck blocks")
    )
    width: float = setting(Number(default=1.0, within=(0.1, 16), doc="factor for the number of channels"))
    groups: int = setting(Count(default=1, within=(1, 1024), doc="groups of the bottlenecks' 3x3 convolutions"))
    base_width: int = setting(
        Count(
            default=64,
            within=(1, 1024),
            doc="channels of a group in the first stage. A resnext50_32x4d has 32 groups of 4",
        )
    )
    activation: str = setting(
        Choice(default="relu", options=("relu", "silu", "mish", "gelu"), doc="activation function")
    )
    attention: str = setting(
        Choice(default="none", options=("none", "se"), doc="channel attention at the end of each block")
    )
    self_attention: bool = setting(Flag(default=False, doc="self-attention over all positions after the first stage"))
    pool: str = setting(
        Choice(
            default="avg", options=("avg", "max", "blur"), doc="pooling of the shortcuts. blur: max without aliasing"
        )
    )
    stem_pool: bool = setting(Flag(default=True, doc="halve the resolution again after the stem's three convolutions"))
    zero_init: bool = setting(Flag(default=True, doc="initialize every block so that it returns only its shortcut"))
    dropout: float = setting(Number(default=0.0, within=(0, 0.99), doc="dropout rate before the head"))
