"""Settings of the loss."""

from dataclasses import dataclass

from augment.params import Choice, Flag, Number, setting

# Losses of numbers, means over the batch and the numbers of each image -> names in torch.nn.functional.
REGRESSION_LOSSES = {"mse": "mse_loss", "mae": "l1_loss", "huber": "huber_loss"}
# Names of `trainer.tasks.tta.TTA`.
VIEWS = ("none", "flip", "flip_shift")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How the loss is computed; some settings apply to some tasks only."""

    label_smoothing: float = setting(
        Number(default=0, within=(0, 0.999), doc="share of each training target that is spread over all classes")
    )
    regression_loss: str = setting(
        Choice(
            default="huber",
            options=REGRESSION_LOSSES,
            doc="regression: the loss to minimize; huber: quadratic for errors up to 1, linear beyond, which allows a "
            "higher lr than mse",
        )
    )
    standardize: bool = setting(
        Flag(
            default=True,
            doc="regression: learn targets standardized by mean and deviation of the train split, which the loss is "
            "computed on; everything else is in original units",
        )
    )
