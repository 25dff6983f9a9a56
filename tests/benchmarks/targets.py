"""Compare how fast images are loaded with masks, boxes or points beside them, here and by other libraries.

    python tests/benchmarks/targets.py aug=segment --photos DIR

Each photo gets a drawn mask of 6 labels, 5 boxes or 14 points. The first row loads the same images with a class,
by the same recipe. Other libraries decode by PIL in worker processes: torchvision v2 and albumentations transform
there, kornia on the device, where images of several sizes are resized first. They crop, flip, turn, change colors and
normalize in the ranges of `aug=segment`.
"""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import make_parser, make_setup, measure
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import tv_tensors
from torchvision.transforms import v2

import augment
from augment.cli.benchmark import LeftOutError, Row, consumer
from augment.cli.compose import compose_recipe
from augment.cli.parser import readable_errors

try:
    import albumentations
except ImportError:
    albumentations = None
try:
    import kornia.augmentation as kornia
except ImportError:
    kornia = None

PASS = 20  # batches of an epoch at least
BOXES, POINTS, LABELS = 5, 14, 6
AREA, ASPECT, ANGLES, JITTER = (0.35, 1.0), (0.75, 4 / 3), (-10, 10), (0.2, 0.2, 0.2, 0.05)


def draw(photos: list[Path], folder: Path) -> None:
    """Write links to the photos, masks, COCO's JSON and a CSV of points."""
    random = np.random.default_rng(0)
    for name in ("train/images", "train/masks"):
        (folder / name).mkdir(parents=True)
    images, objects, classes = [], [], []
    points = ["path" + "".join(f",x_{point},y_{point}" for point in range(POINTS))]
    for number, photo in enumerate(photos):
        file = folder / f"train/images/{number:06}{photo.suffix}"
        file.symlink_to(photo.absolute())
        with Image.open(photo) as image:
            width, height = image.size
        corners = np.sort(random.random((BOXES, 2, 2)) * 0.6, axis=1)
        corners = (corners + np.array([[0, 0], [0.3, 0.3]])) * np.array([width, height])
        mask = Image.new("P", (width, height))
        mask.putpalette(bytes(range(3 * LABELS)))
        for label, ((left, top), (right, bottom)) in enumerate(corners, 1):
            ImageDraw.Draw(mask).ellipse((left, top, right, bottom), fill=label)
            box = [left, top, right - left, bottom - top]
            objects.append({"id": len(objects) + 1, "image_id": number, "category_id": label, "bbox": box,
                            "area": box[2] * box[3], "iscrowd": 0})  # fmt: skip
        mask.save(folder / f"train/masks/{number:06}.png")
        images.append({"id": number, "file_name": file.name, "width": width, "height": height})
        inside = random.random((POINTS, 2)) * [width - 1, height - 1]
        points.append(",".join([f"train/images/{file.name}", *(f"{value:.2f}" for value in inside.ravel())]))
        classes.append(f'"{file}" 0\n')
    names = [{"id": label, "name": f"class{label}"} for label in range(1, BOXES + 1)]
    (folder / "train.json").write_text(json.dumps({"images": images, "annotations": objects, "categories": names}))
    (folder / "train.csv").write_text("\n".join(points) + "\n")
    (folder / "train.txt").write_text("".join(classes))


class Masked(Dataset):
    """Images and masks, decoded by PIL and transformed together."""

    def __init__(self, folder: Path, transform: Callable[[Image.Image, Image.Image], Any]) -> None:
        self.images, self.transform = sorted((folder / "train/images").iterdir()), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        with Image.open(image) as photo, Image.open(image.parents[1] / "masks" / f"{image.stem}.png") as mask:
            return self.transform(photo.convert("RGB"), mask.copy())


class ByTorchvision:
    def __init__(self, size: tuple[int, int], mean: list[float], std: list[float]) -> None:
        self.steps = v2.Compose([
            v2.RandomResizedCrop(size, AREA, ASPECT), v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.RandomRotation(ANGLES)], 0.3), v2.RandomApply([v2.ColorJitter(*JITTER)]),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std),
        ])  # fmt: skip

    def __call__(self, image: Image.Image, mask: Image.Image) -> tuple[Tensor, Tensor]:
        labels = tv_tensors.Mask(torch.from_numpy(np.array(mask)))
        return self.steps(tv_tensors.Image(v2.functional.pil_to_tensor(image)), labels)


class ByAlbumentations:
    def __init__(self, size: tuple[int, int], mean: list[float], std: list[float]) -> None:
        if albumentations is None:
            raise LeftOutError("albumentations is not installed")
        self.steps = albumentations.Compose([
            albumentations.RandomResizedCrop(size, AREA, ASPECT), albumentations.HorizontalFlip(p=0.5),
            albumentations.Rotate(ANGLES, p=0.3), albumentations.ColorJitter(*JITTER, p=0.5),
            albumentations.Normalize(mean, std),
        ])  # fmt: skip

    def __call__(self, image: Image.Image, mask: Image.Image) -> tuple[Tensor, Tensor]:
        done = self.steps(image=np.asarray(image), mask=np.asarray(mask))
        return torch.from_numpy(done["image"]).permute(2, 0, 1), torch.from_numpy(done["mask"])


class ResizedTo:
    """What kornia gets: images of one size."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size[::-1]

    def __call__(self, image: Image.Image, mask: Image.Image) -> tuple[Tensor, Tensor]:
        if image.size != self.size:
            image, mask = image.resize(self.size), mask.resize(self.size, Image.Resampling.NEAREST)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), torch.from_numpy(np.array(mask))


def by_kornia(device: torch.device, size: tuple[int, int], mean: list[float], std: list[float]) -> nn.Module:
    if kornia is None:
        raise LeftOutError("kornia is not installed")
    return kornia.AugmentationSequential(
        kornia.RandomResizedCrop(size, scale=AREA, ratio=ASPECT, p=1.0), kornia.RandomHorizontalFlip(p=0.5),
        kornia.RandomRotation(ANGLES, p=0.3), kornia.ColorJiggle(*JITTER, p=0.5),
        kornia.Normalize(torch.tensor(mean), torch.tensor(std)), data_keys=["input", "mask"],
    ).to(device)  # fmt: skip


def main() -> None:
    flags, overrides = make_parser("targets", __doc__).split(sys.argv[1:])
    setup, recipe = make_setup(flags, overrides), compose_recipe(overrides)
    size, (mean, std) = tuple(setup.plan.size), (list(setup.plan.mean), list(setup.plan.std))

    def ours(folder: Path, data: str, **settings: Any) -> Iterator[Any]:
        options = {"batch_size": setup.batch_size, "device": setup.device, "threads": flags.threads}
        loader = augment.make_loader(recipe, data=data, split="train", drop_last=True, **options, **settings)
        deque(loader, maxlen=0)  # reads every file once
        while True:
            yield from loader

    def workers(transform: Callable[..., Any], folder: Path) -> Iterator[Any]:
        data = Masked(folder, transform)
        loader = DataLoader(
            data, setup.batch_size, sampler=RandomSampler(data, replacement=True, num_samples=10**9),
            num_workers=flags.workers, pin_memory=setup.device.type == "cuda", multiprocessing_context="forkserver",
        )  # fmt: skip
        for images, masks in loader:  # one pass without an end, so that workers never wait for it
            yield images.to(setup.device, non_blocking=True), masks.to(setup.device, non_blocking=True)

    def on_device(folder: Path) -> Iterator[Any]:
        steps = by_kornia(setup.device, size, mean, std)
        for images, masks in workers(ResizedTo(size), folder):
            yield steps(images.float() / 255, masks[:, None].float())

    with TemporaryDirectory(prefix="targets-") as name:
        folder = Path(name)
        photos = [Path(path) for path in dict.fromkeys(setup.paths())]
        draw(photos * -(-PASS * setup.batch_size // len(photos)), folder)
        images, listed = str(folder / "train/images"), str(folder)
        ways: dict[str, tuple[str, Callable[[], Iterator[Any]]]] = {
            "image": ("the image alone", lambda: ours(folder, "filelist", train=f"{folder}/train.txt")),
            "masks": ("with a mask", lambda: ours(folder, "masks", root=listed)),
            "boxes": ("with 5 boxes", lambda: ours(folder, "coco", train=f"{folder}/train.json", train_images=images)),
            "points": (
                "with 14 points",
                lambda: ours(folder, "points", train=f"{folder}/train.csv", root=listed, flip_pairs=[]),
            ),
            "torchvision": ("torchvision v2, mask", lambda: workers(ByTorchvision(size, mean, std), folder)),
            "albumentations": ("albumentations, mask", lambda: workers(ByAlbumentations(size, mean, std), folder)),
            "kornia": ("kornia, mask", lambda: on_device(folder)),
        }
        own = ("image", "masks", "boxes", "points")
        rows = [
            Row(key, title, lambda make=make: consumer(sized(make(), setup.batch_size)), ours=key in own,
                **({} if key in own else {"ahead": 2 * flags.workers + 1, "stride": max(1, flags.workers)}))
            for key, (title, make) in ways.items()
        ]  # fmt: skip
        measure(setup, "targets", rows, ["image"])


class Counted(tuple):
    """A batch whose length is that of its images."""

    def __len__(self) -> int:
        return self.count


def sized(batches: Iterator[Any], count: int) -> Iterator[Any]:
    for batch in batches:
        counted = Counted((batch,))
        counted.count = count
        yield counted


if __name__ == "__main__":
    with readable_errors():
        main()
