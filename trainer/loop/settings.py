"""Settings of the training loop."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from augment.params import Choice, Count, Flag, setting
from augment.support.errors import UserError
from trainer.tasks.settings import VIEWS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How the learner trains."""

    epochs: int = setting(Count(default=30, within=(1, 10**6), doc="passes over the training data"))
    accumulate: int = setting(
        Count(
            default=1,
            within=(1, 10**6),
            doc=(
                "batches per optimizer step, which uses the mean of their gradients; data.balance=weights is "
                "relative within each batch"
            ),
        )
    )
    limit_batches: int | None = setting(
        Count(
            optional=True,
            within=(1, 10**9),
            doc="maximum number of batches per pass, for quick trials; val is then a random sample, by data.split_seed",
        )
    )
    validate_every: int = setting(
        Count(default=1, within=(1, 10**6), doc="epochs between two validations; the last epoch always has one")
    )
    tta: str = setting(
        Choice(default="none", options=VIEWS, doc="views of an image whose probabilities validation averages")
    )
    device: str = setting(
        Choice(default="auto", options=("auto", "cpu", "cuda"), others={"gpu": "cuda"}, doc="where to train")
    )
    precision: str = setting(
        Choice(
            default="fp32",
            options=("fp32", "tf32", "bf16"),
            doc="precision of the forward pass; tf32: fp32 with matrix products in TF32 on a GPU; bf16: autocast",
        )
    )
    graph: bool = setting(
        Flag(default=True, doc="on a GPU: record the work of a batch as CUDA graphs, which takes load off Python")
    )
    compile: bool = setting(Flag(default=False, doc="compile the model with torch.compile"))

    deterministic: bool = setting(
        Flag(
            default=False,
            doc="on a GPU: use algorithms that give identical bits in every run on the same machine; may be slower",
        )
    )
    skip_nonfinite: int = setting(
        Count(
            default=0,
            within=(0, 10**6),
            doc=(
                "maximum number of training batches with a loss or gradients that are not finite to save and skip "
                "before the fit stops; 0: stop at the first such loss"
            ),
        )
    )

    @property
    def bf16(self) -> bool:
        """Whether the forward pass runs in bfloat16 autocast."""
        return self.precision == "bf16"

    def torch_device(self) -> "torch.device":
        """Return the device.

        Raises:
            UserError: device is cuda, but there is no GPU.
        """
        import torch  # the import takes seconds, but checking a configuration should be quick

        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("fit.device: cuda, but PyTorch sees no GPU here. Allowed: auto, cpu.")
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        return torch.device("cuda" if cuda else "cpu")
