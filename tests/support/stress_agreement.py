"""Compare stress tests with ImageNet-C: python tests/support/stress_agreement.py RUN RUN ... [key=value].

Prints the mean accuracy of each classification run under six corruptions, as `trainer stress` computes it and as the
formulas of Hendrycks and Dietterich (2019, arXiv:1903.12261) do in NumPy, at the same five strengths. The last line of
each corruption tells whether both give the same ranking of the runs.
"""

import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from augment.data.selection import take_some
from augment.pipeline.batch import as_pixels
from trainer.run.best_model import LoadedModel, load_best_model
from trainer.stress.corruptions import Corruption
from trainer.stress.scores import stress_test
from trainer.tools.evaluate import evaluated_split

Pixels = NDArray[np.float64]  # (height, width, 3) in 0..1
IMAGES = 1000


def noise(x: Pixels, c: float) -> Pixels:
    return x + np.random.default_rng(int(x.sum() * 1e6)).normal(scale=c, size=x.shape)


def blur(x: Pixels, c: float) -> Pixels:
    return np.asarray(gaussian_filter(x, sigma=(c, c, 0)))


def jpeg(x: Pixels, c: float) -> Pixels:
    data = BytesIO()
    Image.fromarray((x * 255).round().astype(np.uint8)).save(data, "JPEG", quality=int(c))
    return np.asarray(Image.open(data)) / 255


def brightness(x: Pixels, c: float) -> Pixels:
    hsv = rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)
    return np.asarray(hsv_to_rgb(hsv))


def contrast(x: Pixels, c: float) -> Pixels:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * c + mean


def pixelate(x: Pixels, c: float) -> Pixels:
    image = Image.fromarray((x * 255).round().astype(np.uint8))
    small = image.resize((int(image.width * c), int(image.height * c)), Image.Resampling.BOX)
    return np.asarray(small.resize(image.size, Image.Resampling.BOX)) / 255


# Severities of ImageNet-C, and the values of our ops that match them. Its brightness adds c to the largest channel, of
# about 0.5 on average, so the factor is 1 + 2 c.
CASES: dict[str, tuple[Callable[[Pixels, float], Pixels], tuple[float, ...], str, str, Callable[[float], float]]] = {
    "noise": (noise, (0.08, 0.12, 0.18, 0.26, 0.38), "gaussian_noise", "std_range", lambda c: 255 * c),
    "blur": (blur, (1, 2, 3, 4, 6), "gaussian_blur", "sigma_range", float),
    "jpeg": (jpeg, (25, 18, 15, 10, 7), "jpeg", "quality_range", float),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5), "brightness", "factor_range", lambda c: 1 + 2 * c),
    "contrast": (contrast, (0.4, 0.3, 0.2, 0.1, 0.05), "contrast", "factor_range", float),
    "pixelate": (pixelate, (0.6, 0.5, 0.4, 0.3, 0.25), "downscale", "scale_range", float),
}


def reference(trained: LoadedModel, change: Callable[[Pixels, float], Pixels], severities: tuple[float, ...]) -> float:
    """Return the mean accuracy over the severities, on the images as the model gets them."""
    split = take_some(evaluated_split(trained, None), IMAGES, seed=0)
    device, found = trained.config.fit.torch_device(), []
    network = trained.network.to(device).eval()
    loader = trained.loader(split)
    mean, std = (torch.tensor(value, device=device).view(3, 1, 1) for value in (loader.plan.mean, loader.plan.std))
    for batch in loader:
        pixels = as_pixels(batch.images, loader.plan) / 255
        for severity in severities:
            changed = np.stack([np.clip(change(image, severity), 0, 1) for image in pixels])
            images = torch.from_numpy(changed).permute(0, 3, 1, 2).float().to(device)
            with torch.inference_mode():
                right = network((images - mean) / std).argmax(dim=1) == batch.targets.to(device)
            found += right.tolist()
    loader.close()
    return fmean(found)


def main(runs: list[Path], overrides: list[str]) -> None:
    models = [load_best_model(run, overrides) for run in runs]
    for name, (change, severities, op, setting, ours) in CASES.items():
        corruption = Corruption(name, op, setting, tuple(map(ours, severities)))
        scores = []
        for trained in models:
            test = stress_test(trained, evaluated_split(trained, None), [corruption], IMAGES)
            scores.append((test.mean, reference(trained, change, severities)))
            sys.stdout.write(
                f"{name:<10} {trained.run.name:<30} ours {scores[-1][0]:.3f}  reference {scores[-1][1]:.3f}\n"
            )
        rankings = [np.argsort([-pair[side] for pair in scores]).tolist() for side in (0, 1)]
        sys.stdout.write(f"{name:<10} same ranking: {rankings[0] == rankings[1]}\n")


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:] if "=" not in a], [a for a in sys.argv[1:] if "=" in a])
