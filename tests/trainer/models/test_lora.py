"""Test adapters: where they are, that only they and the head train, and that they merge into a plain timm model."""

import re

import pytest
import torch
from fakes import CPU, make_learner, needs_gpu, noise_loader
from graphed import CUDA, How, on_gpu, recording, sgd

from augment.params import Size
from augment.support.errors import UserError
from trainer.callbacks.adapters import Adapters
from trainer.loop.batch_runner import Runner
from trainer.loop.checkpoint import first_difference
from trainer.models.lora import base_state, plain_copy, plain_state, trained_state
from trainer.models.registry import parse_model
from trainer.models.timm_models import Timm

pytest.importorskip("peft")
SIZE = Size(32, 32)


def settings_of(name: str, **lora: object) -> Timm:
    model = parse_model({"kind": "timm", "name": name, "lora": {"rank": 2, **lora}})
    assert isinstance(model, Timm)
    return model


def adapted(name: str, **lora: object) -> torch.nn.Module:
    """Return a network with adapters that change its outputs."""
    torch.manual_seed(0)
    model = settings_of(name, **lora)
    network = model.build(3, SIZE).eval()
    model.adapt(network)
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return network


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext", "test_efficientnet"])
def test_adapters_merge_into_a_plain_model(name: str) -> None:
    network, images = adapted(name, alpha=8), torch.randn(2, 3, 32, 32)
    head = network.default_cfg["classifier"]
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in name or name.startswith(f"{head}.") for name in trained)
    assert trained == trained_state(network).keys()
    assert base_state(network).keys() | trained == network.state_dict().keys()
    plain = settings_of(name).build(3, SIZE).eval()
    state = plain_state(network, network.state_dict())
    assert not first_difference(state, plain)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with torch.inference_mode():
        expected = network(images)
        unadapted = plain_copy(network, {k: torch.zeros_like(v) if "lora_B" in k else v for k, v in before.items()})
        plain.load_state_dict(state)
        torch.testing.assert_close(plain(images), expected, rtol=1e-4, atol=1e-5)
        assert (unadapted(images) - expected).abs().max() > 1e-3
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("name", "targets", "layers"),
    [
        ("test_vit", [], ["attn.proj", "attn.qkv", "mlp.fc1", "mlp.fc2"]),
        ("test_vit", ["qkv", "blocks.0.mlp.*"], ["attn.qkv", "mlp.fc1", "mlp.fc2"]),
        ("test_convnext", [], ["downsample.1", "mlp.fc1", "mlp.fc2", "stem.0"]),
    ],
)
def test_targets_choose_layers(name: str, targets: list[str], layers: list[str]) -> None:
    names = [key for key in adapted(name, targets=targets).state_dict() if ".lora_A" in key]
    found = {".".join(key.partition(".lora_A")[0].split(".")[-2:]) for key in names}
    assert sorted(found) == layers
    assert any("blocks.1.mlp" in key for key in names) == (targets == [])


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"targets": ["conv9"]}, "model.lora.targets: 'conv9' matches no layer of VisionTransformer. Its linear"),
        ({"targets": ["qkv", "head"]}, "model.lora.targets: 'head' matches no layer"),
        ({"rank": 0}, "model.lora.rank: 0 is not allowed."),
        ({"rnak": 3}, "model.lora.rnak: unknown key. Did you mean 'rank'?"),
    ],
)
def test_mistakes_are_named(lora: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        adapted("test_vit", **lora)


def test_the_settings_are_a_mapping() -> None:
    with pytest.raises(
        UserError, match=r"^model\.lora: 8 is not allowed\. Use a mapping, such as model\.lora\.rank=8\. Allowed"
    ):
        parse_model({"kind": "timm", "name": "test_vit", "lora": 8})


def test_adapters_train_in_recorded_work() -> None:
    compare(recording(), CPU)


@needs_gpu
def test_adapters_train_in_cuda_graphs() -> None:
    compare(on_gpu, CUDA)


def compare(how: How, device: torch.device) -> None:
    """Compare a recorded fit with an eager one. Neither changes the base."""

    def state(runner: How) -> dict[str, torch.Tensor]:
        loader = noise_loader(device=device)
        learner = make_learner(
            Adapters(),
            model=adapted("test_resnet"),
            train=loader,
            val=loader,
            epochs=3,
            optimizer=sgd,
            device=device,
            runner=runner,
        )
        before = {name: value.clone() for name, value in base_state(learner.model).items()}
        learner.fit()
        after = base_state(learner.model)
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        return trained_state(learner.model)

    found, expected = state(how), state(Runner)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)
