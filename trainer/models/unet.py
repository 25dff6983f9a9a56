"""U-Net (Ronneberger, Fischer and Brox 2015, arXiv:1505.04597) on the features of any encoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

_WIDEST = 256  # maximum number of channels in the decoder. Encoders may have thousands
_SMALL = (16, 32, 64, 128)  # channels of the small encoder's stages. Each stage halves the resolution


class UnetNetwork(nn.Module):
    """An encoder, and a decoder that combines the encoder's features from coarse to fine.

    The outputs have the size of the images. Features are resized before they are combined, so the encoder may have any
    strides, and images need no padding.

    Args:
        encoder: maps images, (N, C, height, width), to a list of features, (N, channels, ...), the finest first.
        channels: numbers of channels of the features.
        classes: number of classes.
    """

    def __init__(self, encoder: nn.Module, channels: Sequence[int], classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = nn.ModuleList()
        *finer, width = channels
        for skip in reversed(finer):
            inputs, width = width + skip, min(skip, _WIDEST)
            self.decoder.append(nn.Sequential(*convolution(inputs, width), *convolution(width, width)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (N, classes, height, width)."""
        *finer, features = self.encoder(images)
        for skip, block in zip(reversed(finer), self.decoder, strict=True):
            features = block(torch.cat([_resized(features, skip), skip], dim=1))
        return _resized(self.head(features), images)


class SmallEncoder(nn.Module):
    """Eight 3x3 convolutions in four stages. It trains in minutes on two CPU cores."""

    channels = _SMALL

    def __init__(self, inputs: int = 3) -> None:
        super().__init__()
        stages = zip((inputs, *_SMALL), _SMALL, strict=False)
        self.stages = nn.ModuleList(nn.Sequential(*convolution(n, m, stride=2), *convolution(m, m)) for n, m in stages)

    def forward(self, images: Tensor) -> list[Tensor]:
        features = [images]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features[1:]


def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Return a 3x3 convolution with batch norm and ReLU."""
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _resized(features: Tensor, like: Tensor) -> Tensor:
    return interpolate(features, like.shape[2:], mode="bilinear")
