"""Recipe steps that are equivalent to transforms of torchvision, albumentations and timm."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from augment.support.yaml_files import read_yaml


@dataclass(frozen=True)
class Equivalent:
    """A row of equivalents.yaml: a transform in other libraries, and the recipe steps that replace it."""

    torchvision: str = ""  # names in torchvision.transforms.v2
    albumentations: str = ""  # names in albumentations
    timm: str = ""  # arguments of timm.data.create_transform or timm.data.Mixup
    steps: str = ""  # the equivalent recipe steps in YAML. Empty without an equivalent
    note: str = ""  # how the steps differ, or what to do without an equivalent

    def parsed(self) -> dict[str, Any]:
        return yaml.safe_load(f"{{{self.steps}}}") or {}


# More names of ops, in lower case and without "random". They come from kornia, fastai, Keras, imgaug, Ultralytics,
# timm's command line, papers, and similar transforms of albumentations.
ALIASES = {
    "affine": "randaffine safeaffine perspectiveaffine shiftscale",
    "autocontrast": "maxcontrast normalizecontrast",
    "auto_augment": "aa autoaug",
    "brightness": "lighting maxlighting multiply hsvv illumination light",
    "center_crop": "centercropping cropfraction",
    "channel_shuffle": "bgr rgbshuffle",
    "color_jitter": "colorjiggle colorjitter jitter augtransforms hsv",
    "contrast": "contrastchange linearcontrast",
    "cutmix": "cutmixv2 cutmixcallback",
    "downscale": "pixelate lowresolution",
    "elastic": "elasticdeformation elastictransformation",
    "erase": "cutout erasing re reprob dropout regiondropout maskdropout hideandseek xymasking patchdropout",
    "flip": "flip mirror hflip vflip fliplr flipud flipvert doflip lrflip udflip horizontalflip verticalflip flips",
    "gamma": "gammacontrast gammacorrection",
    "gaussian_blur": "blur boxblur averageblur advancedblur smooth",
    "gaussian_noise": "noise gaussnoise additivegaussiannoise additivenoise",
    "grayscale": "gray grey greyscale togray grayscaleprob",
    "grid_mask": "gridmask griddropout gridcutout gridshuffle",
    "hue": "hsvh huesaturation addtohue colorshift",
    "jpeg": "jpegcompression compression imagecompression jpegartifacts",
    "letterbox": "pad padto padding longestmaxsize ratioresize",
    "mixup": "mixupv2 mixupcallback",
    "mosaic": "mosaic4 mosaicaugmentation",
    "perspective": "warpperspective maxwarp homography",
    "rand_augment": "randaugment randaug",
    "random_crop": "crop cropping croppad cropandpad shiftcrop",
    "random_resized_crop": "rrc inceptioncrop sizedcrop resizedcroprandom resizedcrop sizedbboxsafecrop",
    "resize": "resizing squash smallestmaxsize",
    "rot90": "rotate90 rotation90 dihedral d4 transpose",
    "rotate": "rotation degrees maxrotate saferotate",
    "salt_and_pepper": "saltandpeppernoise saltpepper impulsenoise",
    "saturation": "hsvs saturate multiplysaturation color",
    "scale": "zoom zoomin zoomout maxzoom scaling scalejitter",
    "sharpen": "sharpness unsharpmask",
    "shear": "shearx sheary",
    "shot_noise": "poissonnoise isonoise",
    "solarize": "solarization",
    "translate": "shift translation translatex translatey translatexy widthshift heightshift",
    "trivial_augment": "trivialaugment triviaugment ta tawide",
}


@cache
def equivalents() -> tuple[Equivalent, ...]:
    rows: Any = read_yaml(Path(__file__).with_suffix(".yaml"))
    return tuple(Equivalent(**row) for row in rows)


def op_like(name: str) -> str | None:
    """Return the equivalent op of another library's transform, such as flip for RandomHorizontalFlip."""
    plain = re.sub(r"[\W_]", "", name).lower()
    for row in equivalents():
        transforms = [name.lower() for name in re.findall(r"[A-Z]\w*", f"{row.torchvision} {row.albumentations}")]
        if plain in transforms and (steps := row.parsed()):
            step, values = next(iter(steps.items()))
            return str((values or {}).get("op", step))
    alias = plain.removeprefix("random")
    return next((op for op, names in ALIASES.items() if alias in names.split()), None)
