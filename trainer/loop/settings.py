"""Settings of the training loop."""

import os
import re
from dataclasses import dataclass
from typing import Self

from augment.params import Choice, Count, Flag, Texts, parse_params, setting, settings
from augment.support.device import missing_gpu
from augment.support.errors import UserError
from augment.support.formatting import amount
from augment.support.lazy_torch import torch
from augment.support.process import launched_ranks, local_rank

# The largest number of epochs. Checkpoints with more rows of metrics may have too many values to be read.
MAX_EPOCHS = 30_000

TTA = ("none", "flip")  # test-time augmentation: none, or the average over an image and its mirror image
_GPUS = {given: f"cuda:{n}" for n in range(8) for given in (f"gpu:{n}", f"{n}")}  # for suggestions in errors


@dataclass(frozen=True, kw_only=True)
class DeviceName(Choice):
    """A kind of device, or a single GPU such as cuda:1."""

    def _convert(self, value: object) -> str | None:
        text = str(value)  # Python code may pass a torch.device
        return text if re.fullmatch(r"cuda:(0|[1-9]\d{0,2})", text) else super()._convert(text)

    def _allowed(self) -> str:
        return f"{super()._allowed()}, cuda:N"


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings of the learner."""

    epochs: int = setting(
        Count(
            aliases=("max_epochs", "num_epochs", "n_epochs"),
            default=30,
            within=(1, MAX_EPOCHS),
            doc="passes over the training data",
        )
    )
    steps: int | None = setting(
        Count(
            aliases=("max_steps", "num_steps", "n_steps", "max_iters"),
            optional=True,
            within=(1, 10**9),
            doc="length of the run in optimizer steps. It takes precedence over fit.epochs. Default: fit.epochs",
        )
    )
    accumulate: int = setting(
        Count(
            aliases=("grad_accum", "accumulate_grad_batches", "gradient_accumulation_steps"),
            default=1,
            within=(1, 10**6),
            doc="batches per step (gradient accumulation). Equivalent to a larger batch, except for batch norms",
        )
    )
    limit_batches: int | None = setting(
        Count(
            optional=True,
            within=(1, 10**9),
            doc="maximum number of batches per pass, for quick trials. Validation then uses a random sample, "
            "determined by data.split_seed",
        )
    )
    validate_every: int = setting(
        Count(default=1, within=(1, 10**6), doc="epochs between two validations. The last epoch always has one")
    )
    tta: str = setting(
        Choice(default="none", options=TTA, doc="test-time augmentation. flip: average over image and mirror image")
    )
    metrics: tuple[str, ...] = setting(
        Texts(default=(), doc="metrics to measure in addition to the task's usual ones, such as f1")
    )
    device: str = setting(
        DeviceName(
            aliases=("accelerator",),
            default="auto",
            options=("auto", "cpu", "cuda"),
            others={"gpu": "cuda", **_GPUS},
            doc="device to train on. cuda:1: the second GPU",
        )
    )
    precision: str = setting(
        Choice(
            aliases=("amp", "mixed_precision", "dtype"),
            default="fp32",
            options=("fp32", "tf32", "bf16", "fp16", "auto"),
            doc="precision of the forward pass. fp32: PyTorch's default, with TF32 convolutions on a GPU. tf32: "
            "also TF32 matrix products. bf16: autocast. fp16: autocast with loss scaling, for GPUs without bf16. auto: "
            "bf16 if the device supports it natively, otherwise fp32",
        )
    )
    gpus: int | None = setting(
        Count(
            aliases=("devices", "num_gpus", "n_gpus", "world_size"),
            optional=True,
            within=(1, 4096),
            doc="processes that train together, one per GPU, or on the CPU with fit.device=cpu. Default: the number "
            "that torchrun started, otherwise 1",
        )
    )
    sync_batchnorm: bool = setting(Flag(default=False, doc="compute batch-norm statistics over all GPUs together"))
    graph: bool = setting(Flag(default=True, doc="on a GPU, record the work of a batch as CUDA graphs"))
    compile: bool = setting(Flag(default=False, doc="compile the model with torch.compile"))

    deterministic: bool = setting(
        Flag(
            default=False,
            doc="on a GPU, use algorithms with bit-identical results in every run on the same machine. May be slower",
        )
    )

    def __new__(cls, **given: object) -> Self:
        """Check the arguments if Python code creates the settings. Subclasses are created from checked values."""
        if cls is LoopSettings:
            parse_params(settings(cls), given, "LoopSettings")
        return super().__new__(cls)

    def limited(self, batches: int) -> int:
        """Limit a number of batches to `limit_batches`."""
        return batches if self.limit_batches is None else min(self.limit_batches, batches)

    @property
    def used_precision(self) -> str:
        """The precision on this machine."""
        if self.precision != "auto":
            return self.precision
        return "bf16" if has_bf16(self.torch_device()) else "fp32"

    @property
    def slow_precision(self) -> str:
        """A warning if the precision makes training slower on this machine, or an empty string."""
        if self.precision != "bf16" or has_bf16(self.torch_device()):
            return ""
        return (
            "fit.precision=bf16: this device does not compute in bf16 natively, so it may be several times slower "
            "than fp32. Set fit.precision=auto, which uses bf16 only on devices that support it natively"
        )

    @property
    def half(self) -> bool:
        """Whether the forward pass runs in autocast, with 16-bit numbers."""
        return self.used_precision in ("bf16", "fp16")

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled, see `trainer.loop.batch_runner.Scaler`."""
        return self.precision == "fp16"

    def autocast(self, device: "torch.device") -> "torch.autocast":
        """Return the context manager of the forward pass."""
        kind = torch.float16 if self.scaled else torch.bfloat16
        # The cache is off, so that a recorded pass never uses weights that another pass has converted.
        return torch.autocast(device.type, kind, enabled=self.half, cache_enabled=False)

    def set_precision(self, device: "torch.device") -> None:
        """Set PyTorch's precision of float32 matrix products on a GPU."""
        if device.type == "cuda":
            # By default, PyTorch uses TF32 only in convolutions.
            torch.set_float32_matmul_precision("highest" if self.used_precision == "fp32" else "high")

    def torch_device(self) -> "torch.device":
        """Return the device of this process.

        Raises:
            UserError: PyTorch does not see the GPU, or there are fewer GPUs than processes.
        """
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        best = "cuda" if count else "cpu"
        device = torch.device(best if self.device == "auto" else self.device)
        index: int | None = device.index
        if device.type == "cuda" and (index or 0) >= count:
            raise missing_gpu(f"fit.device={self.device}", count)
        if launched_ranks() > 1 and self.device != "cpu":
            if index is not None:
                raise UserError(f"fit.device={self.device}, but each rank needs its own GPU. Allowed: auto, cpu.")
            index, ranks = local_rank()
            if (needed := max(index + 1, ranks)) > count:
                raise UserError(
                    f"fit.gpus: {needed} processes run on this machine, but each sees {amount(count, 'GPU')} "
                    f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}). Start at most one process "
                    "per GPU, and make all GPUs visible to each process. Or set fit.device=cpu."
                )
        return device if index is None else torch.device("cuda", index)


def has_bf16(device: "torch.device") -> bool:
    """Return whether a device supports bfloat16 natively. Emulation is several times slower."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
