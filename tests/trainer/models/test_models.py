"""Models: the small network layer by layer, timm by name, and mistakes found before anything is built."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request

import pytest
import torch
from lazily import LazyModule
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import Cnn, Model, Timm, check_model, parse_model
from trainer.models.torchvision_models import Detector

timm = LazyModule("timm")

# --- cnn ---


@pytest.mark.parametrize(("size", "classes"), [(8, 1), (33, 1000)])
def test_cnn_takes_any_size_and_number_of_classes(size: int, classes: int) -> None:
    network = Cnn().build(classes, Size(size, size))
    output = network(torch.randn(2, 3, size, size))
    assert output.shape == (2, classes)
    output.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


# --- by name ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "model.kind is required. Allowed: "),
        ({"kind": "cn"}, "model.kind: unknown kind 'cn'. Did you mean 'cnn'? Allowed: cnn, "),
        (
            {"kind": "timm", "nam": "resnet18"},
            "model.nam: unknown key. Did you mean 'name'? Allowed: checkpointing, lora, name, options, pretrained, "
            "weights.",
        ),
        ({"kind": "timm", "name": "resnet18", "pretrained": "yes"}, "model.pretrained: 'yes' is not allowed."),
    ],
)
def test_mistakes_are_named(given: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        parse_model(given)


# --- timm ---


@pytest.mark.parametrize(("given", "hint"), [("resnet81", " Did you mean 'resnet18'?"), ("xyzzy", "")])
def test_an_unknown_name_is_rejected_with_the_nearest(given: str, hint: str) -> None:
    settings = Timm(name=given, pretrained=True)
    check = partial(check_model, Timm(name=given), 10, Size(64, 64))
    for call in (check, partial(settings.build, 10, Size(64, 64)), settings.normalization):
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value) == (
            f"model.name: unknown model '{given}'.{hint} "
            f"timm.list_models() lists the {len(timm.list_models())} allowed names."
        )


@pytest.mark.parametrize("choice", [False, True])
def test_unknown_weights_are_rejected_with_the_nearest(choice: bool) -> None:
    settings = Timm(name="resnet18.a1_in1", pretrained=choice)
    message = r"^model\.name: unknown weights 'resnet18\.a1_in1'\. Did you mean 'resnet18\.a1_in1k'\? Allowed: "
    with pytest.raises(UserError, match=message):
        settings.build(10, Size(64, 64))


def test_pretrained_without_weights_is_rejected() -> None:
    name = next(name for name in timm.list_models() if not timm.list_pretrained(f"{name}.*"))
    settings = Timm(name=name, pretrained=True)
    message = f"^model.pretrained=true: timm has no weights for '{name}'. Set model.pretrained=false.$"
    with pytest.raises(UserError, match=message):
        settings.build(10, Size(64, 64))
    with pytest.raises(UserError, match=message):
        settings.normalization()


def test_weights_that_are_out_of_reach_end_at_once_with_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download itself would try ten times."""
    asked: list[float] = []

    def fail(request: Request, timeout: float) -> None:
        asked.append(timeout)
        raise URLError("no route to host\nmore")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names, **options: None)
    monkeypatch.setattr("timm.create_model", lambda *given, **options: pytest.fail("tried to download"))
    with pytest.raises(UserError) as caught:
        Timm(name="resnet18", pretrained=True).build(10, Size(64, 64))
    assert "no route to host" in str(caught.value)
    for way in ("model.weights=FILE", "timm/resnet18.a1_in1k", "HF_HOME=DIR", "model.pretrained=false"):
        assert way in str(caught.value)
    assert len(asked) == 1
    assert asked[0] <= 10
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names, **options: "/cache/file")
    Timm(name="resnet18", pretrained=True).require_weights()  # from the cache


def test_weights_of_torchvision_are_announced_and_have_to_be_within_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(request: Request, timeout: float) -> None:
        raise URLError(f"no route to {request.host} in {timeout} s")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", fail)
    name = "fasterrcnn_resnet50_fpn"
    assert Detector(name=name).downloads() == Detector(name=name, pretrained=True, weights="file").downloads() == ""
    Detector(name=name).require_weights()
    model = Detector(name=name, pretrained=True)
    assert model.downloads() == "pretrained"
    with pytest.raises(UserError, match=r"_resnet50.* are not in the cache .*no route to download.pytorch.org in 10 s"):
        model.require_weights()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "resnet50-11ad3fa6.pth").touch()
    assert model.downloads() == ""
    model.require_weights()


def test_the_normalization_is_that_of_the_weights_named() -> None:
    half = (0.5, 0.5, 0.5)
    assert Timm(name="vit_tiny_patch16_224.augreg_in21k", pretrained=True).normalization() == (half, half)
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert Timm(name="resnet18.a1_in1k", pretrained=True).normalization() == imagenet


# --- check_model ---


@pytest.mark.parametrize(("name", "size"), [("vit_tiny_patch16_224", 8), ("bat_resnext26ts", 130)])
def test_a_size_that_does_not_fit_is_rejected(name: str, size: int) -> None:
    """The second raises an error without words."""
    with pytest.raises(UserError, match=rf"^aug\.size={size}: the model cannot take images of this size"):
        check_model(Timm(name=name), 10, Size(size, size))


@pytest.mark.parametrize(
    ("network", "found"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 20, 1000)), "of shape (1, 1000)"),
        (nn.Flatten(0), "of shape (1200,)"),
        (nn.AdaptiveMaxPool2d(1, return_indices=True), "a tuple"),
    ],
    ids=["too many", "no batch", "a tuple"],
)
def test_outputs_that_are_not_one_for_each_class_are_rejected(network: nn.Module, found: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wrong(Model):
        def build(self, classes: int, size: int) -> nn.Module:
            return network.to("meta")

    expected = f"model: its output for one image is {found}. Return a tensor of shape (1, 10)."
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"):
        check_model(Wrong(), 10, Size(20, 20))


def test_options_go_to_timm() -> None:
    options = {"drop_path_rate": 0.2, "global_pool": "max", "stem_width": 16}
    network = Timm(name="resnet18", options=options).build(3, Size(64, 64))
    assert network.global_pool.pool_type == "max"
    assert network.conv1.out_channels == 64
    rates = [block.drop_path.drop_prob for stage in (network.layer3, network.layer4) for block in stage]
    assert all(rate > 0 for rate in rates)
    model = Timm(name="vit_tiny_patch16_224", options={"img_size": [64, 64]})
    assert check_model(model, 3, Size(64, 64)).patch_embed.img_size == (64, 64)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg11", {"drop_pth_rate": 0.1}, r"^model\.options\.drop_pth_rate: unknown key\. Did you mean 'drop_rate'"),
        ("vit_tiny_patch16_224", {"clas_token": False}, r"^model\.options\.clas_token: .* Did you mean 'class_token'"),
        ("resnet18", {"in_chans": 1}, r"^model\.options\.in_chans: not allowed\. .* channels\.$"),
        (
            "resnet18",
            {"pretrained": True},
            r"^model\.options\.pretrained: not allowed\. Set model\.pretrained instead\.$",
        ),
        ("resnet18", {"layers": 3}, r"^model\.options: resnet18 does not accept them "),
    ],
)
def test_options_that_a_model_lacks_are_rejected(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_model(Timm(name=name, options=options), 3, Size(64, 64))


def test_checkpointing_keeps_less_and_changes_no_gradient() -> None:
    gradients, kept = [], []
    images = torch.rand(2, 3, 64, 64, generator=torch.manual_seed(0))
    for on in (False, True):
        torch.manual_seed(0)
        network = Timm(name="resnet18", checkpointing=on, options={"drop_rate": 0.5}).build(3, Size(64, 64)).train()
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = network(images)
        kept.append(sum(sizes.values()) - sum(p.nbytes for p in network.parameters() if p.data_ptr() in sizes))
        output.square().sum().backward()
        gradients.append([p.grad for p in network.parameters()])
    assert kept[1] < 0.6 * kept[0]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    with pytest.raises(UserError, match=r"^model\.checkpointing=true: vgg11 does not support gradient checkpointing"):
        check_model(Timm(name="vgg11", checkpointing=True), 3, Size(64, 64))


@pytest.mark.parametrize(
    ("given", "classes", "zero"),
    [({}, 5, False), ({"pretrained": True}, 5, True), ({"pretrained": True}, 1000, False), ({"weights": "w"}, 5, True)],
)
def test_only_new_heads_of_pretrained_networks_start_from_zero(
    given: dict[str, Any], classes: int, zero: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = timm.create_model
    monkeypatch.setattr("timm.create_model", lambda name, pretrained, **options: create(name, **options))
    monkeypatch.setattr(Timm, "require_weights", lambda self: None)
    head = Timm(name="mobilenetv3_small_050", **given).build(classes, Size(32, 32)).get_classifier()  # type: ignore[operator]
    assert bool((head.weight == 0).all()) == zero
