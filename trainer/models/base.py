"""The base classes of model settings, and the registry of models."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from types import MappingProxyType
from typing import ClassVar, Self, TypeVar

from augment.params import READS, Size, Text, setting
from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor, nn
from augment.support.user_code import registering

Channels = tuple[float, ...] | str

_TIMEOUT = 10  # seconds to wait for a server


@dataclass(frozen=True, kw_only=True)
class Model:
    """Base class of model settings."""

    task: ClassVar[str] = ""  # the task. Empty: all tasks that need one output vector per image
    any_size: ClassVar[bool] = False  # whether the network accepts images of any size, so that no check is needed

    weights: str | None = setting(
        Text(
            optional=True,
            doc="file (.safetensors or a PyTorch checkpoint) or run folder with weights to start from. The head "
            "starts from new weights unless the classes are the same",
            reach=READS,
        )
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build the network, (N, 3, height, width) -> (N, classes), for images of this size.

        A model for any number of channels has a third parameter, `channels: int = 3`.

        Raises:
            UserError: an unknown network, a missing package, or weights that cannot be downloaded.
        """
        raise NotImplementedError

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return the mean and standard deviation, in [0, 1], of the normalization that the weights need.

        None: the weights need no particular normalization.
        """
        return None

    def untrained(self) -> Self:
        """Return the same model without weights to read or download."""
        return replace(self, weights=None)

    def downloads(self) -> str:
        """Return the setting that makes a run download weights, or an empty string."""
        return ""

    def require_weights(self) -> None:
        """Check that the weights are available, before the run writes anything.

        Raises:
            UserError: the weights cannot be downloaded.
        """

    def adapt(self, network: "nn.Module") -> str:
        """Change a network for training, after it has its initial weights. Return a sentence about the change to log.

        `best.pt` contains weights for the unchanged network.
        """
        return ""

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Convert the tensors of a weight file to the network's layout. Return unsupported layouts unchanged.

        Args:
            tensors: the tensors by their names in the file.
            network: the network that loads them. It defines the names and shapes.
        """
        return tensors


class Pretrained(Model):
    """Base class of models with pretrained weights, which `pretrained=True` loads unless `weights` is set."""

    cache: ClassVar[str] = "HF_HOME"  # the environment variable with the folder of the package's weights
    name: str | None
    pretrained: bool

    @property
    def loads(self) -> bool:
        """Whether the network starts from the package's weights."""
        return self.pretrained and self.weights is None

    def untrained(self) -> Self:
        return replace(self, pretrained=False, weights=None)  # type: ignore[call-arg]  # a field of subclasses

    def download_url(self) -> str | None:
        """Return the URL of the weights to download. Empty: no download. None: only the package knows the URL."""
        return None if self.loads else ""

    def downloads(self) -> str:
        """Return "pretrained" if the package would download weights."""
        return "" if self.download_url() == "" else "pretrained"

    def require_weights(self) -> None:
        """Check that the weights are cached or can be downloaded. Without this check, packages retry for a minute."""
        if not (url := self.download_url()):
            return
        try:
            _reach(url)
        except OSError as error:
            raise UserError(
                f"model.pretrained=true: the weights of {self.name} are not in the cache and cannot be downloaded "
                f"({first_line(error).rstrip('.')}). Set model.weights=FILE, set {self.cache}=DIR to a cache with the "
                f"file from {url}, or set model.pretrained=false."
            ) from error


@lru_cache  # the jobs of a sweep share a successful check
def _reach(url: str) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    with suppress(HTTPError):  # the server has answered
        urlopen(Request(url, method="HEAD"), timeout=_TIMEOUT).close()


def build_network(settings: Model, classes: int, size: Size, channels: int = 3) -> "nn.Module":
    """Build the network of a model for images with this number of channels.

    Raises:
        UserError: the model supports only three channels. See also `Model.build`.
    """
    if "channels" in signature(settings.build).parameters:
        return settings.build(classes, size, channels=channels)  # type: ignore[call-arg]
    if channels != 3:
        raise UserError(
            f"model.kind: {type(settings).__name__} takes images with 3 channels, but the data has {channels}. Add the "
            "parameter `channels` to its `build`, or choose another model."
        )
    return settings.build(classes, size)


M = TypeVar("M", bound=type[Model])

_MODELS: dict[str, type[Model]] = {}

# Read-only: name in the configuration -> model.
MODELS: Mapping[str, type[Model]] = MappingProxyType(_MODELS)


def model(kind: str) -> Callable[[M], M]:
    """Register a model under its name in the configuration."""
    return registering(_MODELS, "model", kind)
