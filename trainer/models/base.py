"""What the settings of a model are, and the registry that a model enters with one decorator."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Self, TypeVar

from augment.params import READS, Size, Text, setting
from augment.support.errors import UserError, first_line
from augment.support.lazy_torch import Tensor, nn
from augment.support.user_code import refuse_second

Channels = tuple[float, float, float]

_TIMEOUT = 10  # seconds


@dataclass(frozen=True, kw_only=True)
class Model:
    """Base of the models' settings."""

    # The task that needs models of this kind; empty: its networks return a vector for each image
    task: ClassVar[str] = ""
    any_size: ClassVar[bool] = False  # whether images of any size fit through the network, so that none has to be tried

    weights: str | None = setting(
        Text(
            optional=True,
            doc="start from the weights of this file (.safetensors or a PyTorch checkpoint) or run folder; the head is "
            "new unless the classes are the same",
            reach=READS,
        )
    )

    def build(self, classes: int, size: Size) -> "nn.Module":
        """Build the network: (N, 3, height, width) -> (N, classes), for images of a size.

        Raises:
            UserError: there is no such network, a package is missing, or weights cannot be downloaded.
        """
        raise NotImplementedError

    def normalization(self) -> tuple[Channels, Channels] | None:
        """Return mean and std, in 0..1, that the weights were trained with; None: no preference."""
        return None

    def untrained(self) -> Self:
        """Return the same model without weights to read or download."""
        return replace(self, weights=None)

    def downloads(self) -> str:
        """Return the setting by which a run would download weights; empty if it would not."""
        return ""

    def require_weights(self) -> None:
        """Check that the weights can be had, before anything is written.

        Raises:
            UserError: they cannot be downloaded.
        """

    def convert(self, tensors: Mapping[str, "Tensor"], network: "nn.Module") -> Mapping[str, "Tensor"]:
        """Return the tensors of a file in another layout of this model by the names of its network, if it knows how.

        Args:
            tensors: the tensors by their names in the file.
            network: the network; only names and shapes of its tensors count.
        """
        return tensors


class Pretrained(Model):
    """Base of models whose package has weights, to start from if `pretrained` is true; `weights` take precedence."""

    cache: ClassVar[str] = "HF_HOME"  # the variable that names the folder of the package's weights
    name: str | None
    pretrained: bool

    @property
    def loads(self) -> bool:
        """Whether to start from the weights of the package."""
        return self.pretrained and self.weights is None

    def untrained(self) -> Self:
        """Return the same model without weights to read or download."""
        return replace(self, pretrained=False, weights=None)  # type: ignore[call-arg]  # a field of subclasses

    def missing(self) -> str | None:
        """Return the address of weights that would be downloaded; empty if none would, None if the package knows."""
        return None if self.loads else ""

    def downloads(self) -> str:
        """Return "pretrained" if weights of the package are asked for that are not in its cache."""
        return "" if self.missing() == "" else "pretrained"

    def require_weights(self) -> None:
        """Check that the weights are in the cache or can be downloaded, within seconds; packages try for a minute."""
        if not (url := self.missing()):
            return
        try:
            _reach(url)
        except OSError as error:
            raise UserError(
                f"model.pretrained=true: the weights of {self.name} are not in the cache and cannot be downloaded "
                f"({first_line(error).rstrip('.')}). Allowed: model.weights=FILE; {self.cache}=DIR, a cache that has "
                f"{url}; or model.pretrained=false."
            ) from error


@lru_cache  # for the jobs of a sweep; only what was reached is remembered
def _reach(url: str) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    with suppress(HTTPError):  # the server answers
        urlopen(Request(url, method="HEAD"), timeout=_TIMEOUT).close()


M = TypeVar("M", bound=type[Model])

_MODELS: dict[str, type[Model]] = {}

# Read-only view: name in the configuration -> model.
MODELS: Mapping[str, type[Model]] = MappingProxyType(_MODELS)


def model(kind: str) -> Callable[[M], M]:
    """Register a model under its name in the configuration."""

    def decorate(cls: M) -> M:
        refuse_second("model", kind, _MODELS.get(kind), cls)
        _MODELS[kind] = cls
        return cls

    return decorate
