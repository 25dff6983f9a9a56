"""Train with fastai, as its vision tutorial does."""

import timm
from fastai.vision.all import (
    Flip,
    ImageDataLoaders,
    LabelSmoothingCrossEntropy,
    Learner,
    Normalize,
    RandomResizedCrop,
    accuracy,
    imagenet_stats,
    set_seed,
)
from flags import parse


def main() -> None:
    flags = parse()
    set_seed(flags.seed)
    loaders = ImageDataLoaders.from_folder(
        flags.photos,
        train="train",
        valid="val",
        item_tfms=RandomResizedCrop(flags.size, min_scale=0.35, val_xtra=0.1),
        batch_tfms=[Flip(), Normalize.from_stats(*imagenet_stats)],
        bs=flags.batch_size,
        num_workers=flags.workers,
        device=flags.device,
    )
    model = timm.create_model(flags.model, num_classes=loaders.c)
    loss = LabelSmoothingCrossEntropy(0.1)
    learner = Learner(loaders, model, loss_func=loss, metrics=accuracy, path=".")
    if flags.device == "cuda":
        learner = learner.to_bf16().to_channelslast()
    learner.fit_one_cycle(flags.epochs, flags.lr, wd=0.05)
    print("accuracy", learner.recorder.values[-1][-1])


if __name__ == "__main__":
    main()
