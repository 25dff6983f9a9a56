"""Test distillation: its loss, which teachers fit, and that a run belongs to its teacher."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from runs import BARE, QUIET, draw_classes, rows_of, small_config
from torch import Tensor
from torch.nn import functional as F

from augment.recipe.steps import IMAGENET_MEAN, IMAGENET_STD
from augment.support.errors import UserError
from trainer.loop.checkpoint import BEST, BestModel, load, save
from trainer.run.best_model import load_best_model
from trainer.run.config.checks import check_config
from trainer.run.config.schema import Config
from trainer.run.jobs import saved_run
from trainer.run.teacher import distill
from trainer.run.train import train
from trainer.tasks.loss import ClassLoss, LabelLoss, weight_of


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def teacher(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("teacher")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        config = small_config(images, *BARE, "fit.epochs=2", "aug.mean=[0.5,0.4,0.3]", "aug.std=[0.2,0.3,0.4]")
        train(config, root / "teacher", console=QUIET)
    return root / "teacher"


def student(images: Path, teacher: Path, *more: str) -> Config:
    return small_config(images, *BARE, f"fit.teacher={teacher}", "fit.epochs=1", *more)


def outputs_of(teacher: Path, pixels: Tensor) -> Tensor:
    """Return the teacher's outputs for images in [0, 1]."""
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1)
    with torch.inference_mode():
        found: Tensor = load_best_model(teacher, data=False).network.eval()((pixels - mean) / std)
    return found


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 3.0])])
def test_the_loss(mixed: bool, weights: Tensor | None, images: Path, teacher: Path) -> None:
    """The teacher is fed the same images, in its own normalization. Class weights apply to both parts."""
    config = student(images, teacher, "fit.teacher_weight=0.25", "fit.teacher_temperature=2")
    pixels, outputs = torch.rand(4, 3, 16, 16), torch.randn(4, 2, requires_grad=True)
    targets = torch.rand(4, 2).softmax(1) if mixed else torch.tensor([0, 1, 1, 0])
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    labels = ClassLoss(weights=weights)
    found = distill(config, labels)
    value = found(outputs, targets, (pixels - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1))  # type: ignore[call-arg]
    theirs = outputs_of(teacher, pixels)
    each = torch.ones(4) if weights is None else targets @ weights if mixed else weights[targets]
    divergence = F.kl_div((outputs / 2).log_softmax(1), (theirs / 2).softmax(1), reduction="none").sum(1)
    expected = 0.75 * labels(outputs, targets) + 0.25 * 4 * (divergence * each).sum() / each.sum()
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    assert weight_of(found, targets) == weight_of(labels, targets)
    value.backward()
    assert outputs.grad is not None


def test_classes_are_matched_by_name(images: Path, teacher: Path, tmp_path: Path) -> None:
    """A teacher with other positions, and with more classes."""
    turned = shutil.copytree(teacher, tmp_path / "turned")
    best = load(teacher / BEST, BestModel)
    head = {name: value.flip(0) for name, value in best.model.items() if value.shape[:1] == (2,)}
    assert len(head) == 2
    save(BestModel(**{**vars(best), "model": {**best.model, **head}, "classes": best.classes[::-1]}), turned / BEST)
    batch = torch.randn(3, 2), torch.tensor([0, 1, 0]), torch.rand(3, 3, 16, 16)
    one, other = (distill(student(images, run), ClassLoss())(*batch) for run in (teacher, turned))  # type: ignore[call-arg]
    torch.testing.assert_close(one, other)


def test_labels_have_a_distance_too() -> None:
    from trainer.run.teacher import _DISTANCES

    ours, theirs = torch.randn(3, 4), torch.randn(3, 4)
    expected = LabelLoss()(ours, theirs.sigmoid())
    torch.testing.assert_close(_DISTANCES["multilabel"](ours, theirs).mean(), expected)


@pytest.mark.slow
def test_runs_with_a_teacher(images: Path, teacher: Path, own_folder: Path) -> None:
    """A step of several batches, mixed images and a resumed run. The teacher never changes."""
    before = (teacher / BEST).read_bytes()
    more = ["fit.accumulate=2", "aug.train.mixup.p=1", "fit.schedule=constant", "fit.teacher_weight=1"]
    for name, epochs, start in (("whole", 2, "null"), ("part", 1, "null"), ("resumed", 2, "part")):
        config = student(images, teacher, *more, f"fit.epochs={epochs}", f"fit.resume={start}")
        check_config(config)
        train(config, own_folder / name, console=QUIET)
    assert rows_of(own_folder / "resumed") == rows_of(own_folder / "whole")
    plain = small_config(images, *BARE, *more[:3], "fit.epochs=2")
    train(plain, own_folder / "plain", console=QUIET)
    assert rows_of(own_folder / "plain")[0]["train_loss"] != rows_of(own_folder / "whole")[0]["train_loss"]
    assert (teacher / BEST).read_bytes() == before
    load_best_model(own_folder / "whole", data=False)  # needs no teacher
    with pytest.raises(UserError, match=r"^fit\.teacher: .* is not used"):
        saved_run(own_folder / "whole", trust=False).with_overrides()


def test_teachers_that_do_not_fit(images: Path, teacher: Path, own_folder: Path) -> None:
    with pytest.raises(UserError, match=r"^fit\.teacher=nowhere: this folder does not exist\."):
        check_config(student(images, Path("nowhere")))
    others = draw_classes(own_folder / "others", ("ant", "wasp"))
    with pytest.raises(UserError, match=r"^fit\.teacher=.*: it does not predict the classes wasp .* ant, bee\. Use"):
        check_config(student(others, teacher))
    (own_folder / "labels.csv").write_text(f"path,size\n{images}/val/ant/0.png,3\n{images}/val/bee/0.png,4\n")
    files = ["data.train=labels.csv", "data.val=labels.csv"]
    numbers = ["data=filelist", *files, "data.targets=[size]", "data.root=null"]
    with pytest.raises(UserError, match=r"its task is classify, .* regress\. .*distillation\. Allowed: classify"):
        check_config(student(images, teacher, *numbers))


def test_the_teacher_takes_the_images_of_the_run(images: Path, teacher: Path, own_folder: Path) -> None:
    check_config(student(images, teacher, "aug.size=24"))
    vit = small_config(images, *BARE, "model=timm", "model.name=vit_tiny_patch16_224", "fit.epochs=1", "aug.size=32")
    train(vit, own_folder / "vit", console=QUIET)
    check_config(student(images, own_folder / "vit", "aug.size=32"))
    message = re.escape("fit.teacher=") + r".*vit and aug\.size=48: the model cannot take"
    with pytest.raises(UserError, match=f"^{message}"):
        check_config(student(images, own_folder / "vit", "aug.size=48"))
