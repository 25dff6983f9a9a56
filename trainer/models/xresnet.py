"""The xresnet family: residual networks with optional changes that raise the accuracy of short training.

Sources: He et al. 2019 (Bag of Tricks) for ResNet-D's stem and shortcuts, Xie et al. 2017 for grouped convolutions, Hu
et al. 2018 for squeeze and excitation, and Zhang 2019 for anti-aliased pooling. The combination is fastai's.

All shapes are fixed and no control flow depends on data, so a network can be compiled, and recorded as a CUDA graph.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.xresnet_settings import XresnetSettings

# Depth -> whether blocks are bottlenecks, and the number of blocks in each of the four stages.
LAYOUTS = {
    "18": (False, (2, 2, 2, 2)),
    "26": (True, (2, 2, 2, 2)),
    "34": (False, (3, 4, 6, 3)),
    "50": (True, (3, 4, 6, 3)),
}

MakeModule = Callable[[], nn.Module]
ACTIVATIONS: dict[str, MakeModule] = {
    "relu": partial(nn.ReLU, inplace=True),
    "silu": nn.SiLU,  # not in place, because the backward pass would then need a copy of the input
    "mish": nn.Mish,
    "gelu": nn.GELU,
}


class BlurPool(nn.Module):
    """Halves any size without aliasing: 3x3 max pooling, then a binomial filter with stride 2."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("kernel", torch.outer(line, line)[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, C, ceil(H / 2), ceil(W / 2)) for (N, C, H, W)."""
        channels = x.shape[1]
        padded = F.pad(F.max_pool2d(x, 3, stride=1, padding=1), (1, 1, 1, 1), mode="replicate")
        return F.conv2d(padded, self.kernel.expand(channels, 1, 3, 3), stride=2, groups=channels)


# Pooling of the shortcuts. It rounds odd sides up, like a convolution with stride 2.
POOLS: dict[str, MakeModule] = {
    "avg": partial(nn.AvgPool2d, 2, ceil_mode=True, count_include_pad=False),
    "max": partial(nn.MaxPool2d, 2, ceil_mode=True),
    "blur": BlurPool,
}


class SqueezeExcite(nn.Module):
    """Multiplies each channel by a weight that depends on the means of all channels (squeeze and excitation)."""

    def __init__(self, channels: int, activation: MakeModule) -> None:
        super().__init__()
        inner = 8 * math.ceil(channels / 128)  # a sixteenth, rounded up to a multiple of 8
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1), activation(), nn.Conv2d(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.layers(x.mean((2, 3), keepdim=True))
        return x * weight


class SelfAttention(nn.Module):
    """Adds a mix of all positions to each position, without a softmax (Doria's simple self-attention).

    The mix is a mean, so it does not grow with the image size. Its factor starts at 0.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 1, bias=False)
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        between = flat @ flat.transpose(1, 2) / flat.shape[2]  # (N, C, C): cheaper than positions x positions
        mix: Tensor = between @ self.conv(flat)
        return x + self.weight * mix.view(x.shape)


def conv(inputs: int, outputs: int, side: int, stride: int = 1, groups: int = 1, gain: float = 1.0) -> nn.Sequential:
    """Return a convolution and a batch norm. The weights of the norm start at `gain`."""
    norm = nn.BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, gain)
    return nn.Sequential(nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, groups=groups, bias=False), norm)


class Block(nn.Module):
    """A basic or bottleneck block. The shortcut pools before it changes the channels (ResNet-D)."""

    def __init__(self, inputs: int, outputs: int, middle: int, stride: int, settings: XresnetSettings) -> None:
        super().__init__()
        activation = ACTIVATIONS[settings.activation]
        bottleneck, _ = LAYOUTS[settings.depth]
        if bottleneck:
            grouped = conv(middle, middle, 3, stride, settings.groups)
            layers = [conv(inputs, middle, 1), activation(), grouped, activation()]
        else:
            layers = [conv(inputs, middle, 3, stride), activation()]
        gain = 0.0 if settings.zero_init else 1.0
        layers.append(conv(middle, outputs, 1 if bottleneck else 3, gain=gain))
        layers.append(SqueezeExcite(outputs, activation) if settings.attention == "se" else nn.Identity())
        self.layers = nn.Sequential(*layers)
        shortcut = []
        if stride > 1:
            shortcut.append(POOLS[settings.pool]())
        if inputs != outputs:
            shortcut.append(conv(inputs, outputs, 1))
        self.shortcut = nn.Sequential(*shortcut)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, outputs, ceil(H / stride), ceil(W / stride)) for (N, inputs, H, W)."""
        out: Tensor = self.activation(self.layers(x) + self.shortcut(x))
        return out


class XResNet(nn.Sequential):
    """A stem of three convolutions, four stages of blocks, global average pooling and a linear head."""

    def __init__(self, classes: int, settings: XresnetSettings, channels: int = 3) -> None:
        bottleneck, counts = LAYOUTS[settings.depth]
        stem_widths = [channels, *(_round(settings.width * outputs) for outputs in (32, 32, 64))]
        layers: list[nn.Module] = []
        for i, stride in enumerate((2, 1, 1)):
            layers += [conv(stem_widths[i], stem_widths[i + 1], 3, stride), ACTIVATIONS[settings.activation]()]
        if settings.stem_pool:
            layers.append(BlurPool() if settings.pool == "blur" else nn.MaxPool2d(3, stride=2, padding=1))
        channels = stem_widths[-1]
        for stage, count in enumerate(counts):
            planes = settings.width * 64 * 2**stage
            outputs = middle = _round(planes)
            if bottleneck:
                outputs *= 4
                middle = settings.groups * max(1, round(planes * settings.base_width / 64))
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                layers.append(Block(channels, outputs, middle, stride, settings))
                channels = outputs
            if settings.self_attention and stage == 0:
                layers.append(SelfAttention(channels))
        for layer in layers:
            _initialize(layer)
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if settings.dropout:
            layers.append(nn.Dropout(settings.dropout))
        super().__init__(*layers, nn.Linear(channels, classes))


def _round(channels: float) -> int:
    """Round to a multiple of 8, at least 8, for tensor cores."""
    return max(8, 8 * round(channels / 8))


def _initialize(layer: nn.Module) -> None:
    for module in layer.modules():
        # Initializing weights on the device "meta" would import PyTorch's compiler.
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
