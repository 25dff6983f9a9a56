"""How transforms of torchvision, albumentations and timm are written in a recipe: the table of docs/recipes.md."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from augment.recipe.op import OPS


class Equivalent(NamedTuple):
    """A transform that others have.

    Attributes:
        torchvision: names in torchvision.transforms.v2.
        albumentations: names in albumentations.
        timm: arguments of timm.data.create_transform, or of timm.data.Mixup.
        steps: the steps of a recipe that do the same, as in YAML; empty: none do.
        note: where it is otherwise, or what differs.
    """

    torchvision: str = ""
    albumentations: str = ""
    timm: str = ""
    steps: str = ""
    note: str = ""

    def parsed(self) -> dict[str, Any]:
        """Return the steps as plain values."""
        return yaml.safe_load(f"{{{self.steps}}}") or {}

    @property
    def is_missing(self) -> bool:
        """Whether no registered op does it, nor anything else."""
        ops = [(values or {}).get("op", name) for name, values in self.parsed().items()]
        return not set(ops) <= set(OPS) or not (self.steps or self.note)


EQUIVALENTS = (
    Equivalent("Resize((s, s))", "Resize", "crop_mode=squash", "resize: {}", "the side is `aug.size`"),
    Equivalent("Resize, CenterCrop", "SmallestMaxSize, CenterCrop", "crop_pct=0.9", "center_crop: {scale: 0.9}"),
    Equivalent("Resize, Pad", "LongestMaxSize, PadIfNeeded", "crop_mode=border", "letterbox: {}"),
    Equivalent(
        *("RandomResizedCrop", "RandomResizedCrop", "scale, ratio"),
        "random_resized_crop: {area_range: [0.08, 1.0], aspect_range: [0.75, 1.3333]}",
    ),
    Equivalent(
        *("RandomCrop(32, padding=4)", "PadIfNeeded, RandomCrop", "train_crop_mode"),
        "random_crop: {padding: 0.125, border: constant}",
        "a share of the side, at any size",
    ),
    Equivalent("RandomHorizontalFlip", "HorizontalFlip", "hflip=0.5", "flip: {p: 0.5}"),
    Equivalent("RandomVerticalFlip", "VerticalFlip", "vflip=0.5", "flip: {p: 0.5, direction: vertical}"),
    Equivalent("", "RandomRotate90, D4", "", "rot90: {}", "with `flip: {p: 0.5}`: D4"),
    Equivalent("RandomRotation(10)", "Rotate(10)", "", "rotate: {angle_range: [-10, 10]}"),
    Equivalent(
        *("RandomAffine", "Affine, ShiftScaleRotate", ""),
        "rotate: {angle_range: [-10, 10]}, "
        "affine: {translate_range: [-0.1, 0.1], scale_range: [0.9, 1.1], shear_range: [-5, 5]}",
        "one warp; also `translate`, `scale` and `shear` alone",
    ),
    Equivalent("RandomPerspective(0.25)", "Perspective", "", "perspective: {distortion_range: [0.25, 0.25]}"),
    Equivalent("ElasticTransform", "ElasticTransform", "", "elastic: {}"),
    Equivalent(
        *("ColorJitter(0.4, 0.4, 0.4, 0.1)", "ColorJitter", "color_jitter"),
        "color_jitter: {brightness_range: [0.6, 1.4], contrast_range: [0.6, 1.4], saturation_range: [0.6, 1.4], "
        "hue_range: [-36, 36], order: random}",
        "contrast about 128; hue in degrees of YIQ, not in turns of HSV",
    ),
    Equivalent(
        *("ColorJitter(brightness=0.2)", "RandomBrightnessContrast", ""),
        "brightness: {factor_range: [0.8, 1.2]}, contrast: {factor_range: [0.8, 1.2], pivot: mean}",
        "also `saturation` and `hue`",
    ),
    Equivalent(
        *("", "HueSaturationValue", ""),
        "hue: {angle_range: [-20, 20]}, saturation: {factor_range: [0.7, 1.3]}",
        "in YIQ",
    ),
    Equivalent(
        *("RandomPhotometricDistort", "", ""),
        "color_jitter: {p: 0.5, order: random}, channel_shuffle: {p: 0.5}",
    ),
    Equivalent("Grayscale, RandomGrayscale", "ToGray", "grayscale_prob=0.1", "grayscale: {p: 0.1}"),
    Equivalent("RandomChannelPermutation", "ChannelShuffle", "", "channel_shuffle: {}"),
    Equivalent("RandomInvert", "InvertImg", "", "invert: {p: 0.5}"),
    Equivalent("RandomSolarize(128)", "Solarize", "", "solarize: {p: 0.5, threshold_range: [128, 128]}"),
    Equivalent("RandomPosterize(4)", "Posterize", "", "posterize: {p: 0.5, bits_range: [4, 4]}"),
    Equivalent("RandomEqualize", "Equalize", "", "equalize: {p: 0.5}", "as OpenCV's"),
    Equivalent("RandomAutocontrast", "AutoContrast", "", "autocontrast: {p: 0.5}"),
    Equivalent("", "CLAHE", "", "clahe: {p: 0.5}"),
    Equivalent("", "RandomGamma", "", "gamma: {gamma_range: [0.8, 1.25]}"),
    Equivalent("RandomAdjustSharpness(2)", "Sharpen", "", "sharpen: {p: 0.5, factor_range: [2, 2]}"),
    Equivalent("GaussianBlur", "GaussianBlur", "gaussian_blur_prob=0.5", "gaussian_blur: {p: 0.5}", "sigma in pixels"),
    Equivalent("", "MotionBlur", "", "motion_blur: {p: 0.2}"),
    Equivalent("GaussianNoise(sigma=0.05)", "GaussNoise", "", "gaussian_noise: {std_range: [12.75, 12.75]}", "of 255"),
    Equivalent("", "SaltAndPepper", "", "salt_and_pepper: {p: 0.2}"),
    Equivalent("", "ShotNoise", "", "shot_noise: {p: 0.2}"),
    Equivalent("JPEG((30, 90))", "ImageCompression", "", "jpeg: {quality_range: [30, 90]}"),
    Equivalent("", "Downscale", "", "downscale: {p: 0.2}"),
    Equivalent(
        "RandomErasing", "Erasing, CoarseDropout", "re_prob=0.25, re_mode=pixel", "erase: {p: 0.25, fill: noise}"
    ),
    Equivalent("", "GridDropout", "", "grid_mask: {p: 0.5}"),
    Equivalent("MixUp(alpha=0.2)", "", "mixup_alpha=0.2", "mixup: {alpha: 0.2}", "the loss takes soft targets"),
    Equivalent("CutMix(alpha=1)", "", "cutmix_alpha=1", "cutmix: {alpha: 1.0}"),
    Equivalent(
        *("RandomChoice([MixUp, CutMix])", "", "switch_prob=0.5"),
        "mixing: {op: one_of, steps: {mixup: {}, cutmix: {}}}",
    ),
    Equivalent("RandomChoice", "OneOf", "", "one_of: {steps: {gaussian_blur: {}, sharpen: {weight: 2}}}"),
    Equivalent(
        *("", "SomeOf, RandomOrder", ""), "some_of: {count_range: [1, 2], order: random, steps: {rotate: {}, hue: {}}}"
    ),
    Equivalent("RandomOrder", "", "", "sequence: {order: random, steps: {rotate: {}, hue: {}}}"),
    Equivalent(
        *("Compose, RandomApply", "Sequential", ""), "sequence: {p: 0.3, steps: {rotate: {}, hue: {}}}", "all or none"
    ),
    Equivalent("RandAugment(2, 9)", "", "", "rand_augment: {num_ops: 2, magnitude: 9}"),
    Equivalent(
        *("", "", "auto_augment=rand-m9-n2-inc1"),
        "rand_augment: {num_ops: 2, magnitude: 27}",
        "timm's magnitudes go up to 10, not 30; timm leaves out each op half of the time",
    ),
    Equivalent("TrivialAugmentWide", "", "", "trivial_augment: {}"),
    Equivalent("AutoAugment", "", "auto_augment=original", "auto_augment: {}"),
    Equivalent("AugMix", "", "auto_augment=augmix", "augmix: {}"),
    Equivalent("Normalize", "Normalize", "mean, std", note="`aug.mean`, `aug.std`, in 0..1"),
    Equivalent("FiveCrop, TenCrop", "", "", note="`fit.tta=flip_shift`, for validation"),
    Equivalent("Lambda", "Lambda", "", note="[`numpy_op`, `torch_op`](extending.md#an-op)"),
    Equivalent(
        *(
            "ToImage, ToDtype, ToTensor, PILToTensor, ToPILImage, ToPureTensor, ConvertImageDtype, RGB",
            "ToTensorV2",
            "",
        ),
        note="not needed",
    ),
    Equivalent("RandomResize, RandomShortestSize, ScaleJitter, RandomZoomOut, RandomIoUCrop"),
    Equivalent("LinearTransformation, UniformTemporalSubsample", "FancyPCA, PlanckianJitter, ISONoise"),
    Equivalent("", "GridDistortion, OpticalDistortion, ThinPlateSpline, PiecewiseAffine, Transpose"),
    Equivalent("", "RGBShift, ToSepia, ChannelDropout, PixelDropout, MultiplicativeNoise, Emboss"),
    Equivalent("", "MedianBlur, GlassBlur, Defocus, ZoomBlur, RandomRain, RandomSnow, RandomFog, RandomSunFlare"),
    Equivalent("", "", "re_count, re_num_splits, cutmix_minmax, mode=pair"),
)


def op_like(name: str) -> str | None:
    """Return the op that does what a transform of torchvision or albumentations does; RandomHorizontalFlip: flip."""
    for row in EQUIVALENTS:
        theirs = re.findall(r"[A-Z]\w*", f"{row.torchvision} {row.albumentations}")
        if name.replace("_", "").lower() in map(str.lower, theirs):
            for step, values in row.parsed().items():
                return str((values or {}).get("op", step))
    return None


def equivalent_table() -> str:
    """Return the table in Markdown; rows of which no op is registered say so."""
    head = ["| torchvision v2 | albumentations | timm | here |", "|---|---|---|---|"]
    return "\n".join([*head, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    for row in sorted(EQUIVALENTS, key=lambda row: row.is_missing):
        here = "missing" if row.is_missing else "; ".join(filter(None, (row.steps and f"`{row.steps}`", row.note)))
        yield f"| {' | '.join((row.torchvision, row.albumentations, row.timm, here))} |"
