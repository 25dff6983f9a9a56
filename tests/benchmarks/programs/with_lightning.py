"""Train with Lightning and torchvision, as Lightning's documentation does."""

from pathlib import Path

import lightning
import timm
import torch
from flags import parse
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Classifier(lightning.LightningModule):
    def __init__(self, model: torch.nn.Module, lr: float) -> None:
        super().__init__()
        self.model, self.lr = model, lr

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, classes = batch
        return cross_entropy(self.model(images), classes, label_smoothing=0.1)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, classes = batch
        hits = self.model(images).argmax(1) == classes
        self.log("accuracy", hits.float().mean(), batch_size=len(images))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = AdamW(self.parameters(), self.lr, weight_decay=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = OneCycleLR(optimizer, self.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    flags = parse()
    lightning.seed_everything(flags.seed)
    end = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    crop = v2.RandomResizedCrop(flags.size, scale=(0.35, 1))
    train = ImageFolder(Path(flags.photos) / "train", v2.Compose([crop, v2.RandomHorizontalFlip(), *end]))
    resize = v2.Resize(round(flags.size / 0.9))
    val = ImageFolder(Path(flags.photos) / "val", v2.Compose([resize, v2.CenterCrop(flags.size), *end]))
    common = {"batch_size": flags.batch_size, "num_workers": flags.workers, "pin_memory": flags.device == "cuda"}
    common["persistent_workers"] = flags.workers > 0
    model = timm.create_model(flags.model, num_classes=len(train.classes)).to(memory_format=torch.channels_last)
    trainer = lightning.Trainer(
        max_epochs=flags.epochs,
        precision="bf16-mixed" if flags.device == "cuda" else "32",
        accelerator="gpu" if flags.device == "cuda" else "cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(
        Classifier(model, flags.lr),
        DataLoader(train, shuffle=True, drop_last=True, **common),
        DataLoader(val, **common),
    )
    print("accuracy", trainer.callback_metrics["accuracy"].item())


if __name__ == "__main__":
    main()
