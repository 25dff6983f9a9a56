"""Muon: what is orthogonalized, what is not, and that a step is the one that the definition says."""

from collections.abc import Iterator
from copy import deepcopy
from io import BytesIO
from typing import Any

import pytest
import torch
from fakes import assert_same, needs_gpu, tiny_model
from graphed import recorded
from lazily import LazyModule
from torch import Tensor, nn

from augment.params import Size
from trainer.models.registry import Cnn
from trainer.optim.muon import Muon, hidden_matrices, orthogonalize

timm = LazyModule("timm")
timm_optim = LazyModule("timm.optim")

LAST = torch.channels_last


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_gradients(*params: nn.Parameter, seed: int = 1) -> None:
    for number, param in enumerate(params):
        param.grad = torch.empty_like(param).copy_(normal(*param.shape, seed=seed + number))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 72), (1, 72, 8)])
def test_all_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    given = normal(*shape) * torch.tensor([1e-3, 1.0, 1e3])[: shape[0], None, None]
    values = torch.linalg.svdvals(orthogonalize(given))
    assert values.min() > 0.3  # square noise has singular values of nearly 0, which five iterations raise 500-fold
    assert values.max() < 1.25
    if shape[1] != shape[2]:
        assert values.min() > 0.65


def test_it_agrees_with_timm() -> None:
    """timm computes in bfloat16 everywhere."""
    ours, theirs = (nn.Parameter(normal(12, 5)) for _ in range(2))
    one = Muon([ours], lr=0.1, momentum=0.9)
    options: dict[str, Any] = {"ns_coefficients": "original", "adjust_lr_fn": "original"}
    other = timm_optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=True, **options)
    start = ours.detach().clone()
    for step in range(2):
        with_gradients(ours, seed=step)
        with_gradients(theirs, seed=step)
        one.step()
        other.step()
    torch.testing.assert_close(ours.detach() - start, theirs.detach() - start, atol=0.01, rtol=0.05)


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_matrices_of_several_shapes_do_not_disturb_each_other(layout: torch.memory_format) -> None:
    """All have 8 rows or columns, and are orthogonalized in one batch."""
    shapes = [(8, 8, 3, 3), (8, 4, 3, 3), (16, 8, 1, 1), (8, 8, 1, 1)]
    params = [nn.Parameter(normal(*shape, seed=number).to(memory_format=layout)) for number, shape in enumerate(shapes)]
    start = [param.detach().clone() for param in params]
    with_gradients(*params)
    params[0].grad = params[0].grad.contiguous()  # type: ignore[union-attr]
    Muon(params, lr=0.1, momentum=0.0, nesterov=False).step()
    for before, param in zip(start, params, strict=True):
        assert param.grad is not None
        rows = len(param)
        alone = orthogonalize(param.grad.reshape(1, rows, -1)).reshape(param.shape)
        scale = max(1.0, rows * rows / param.numel()) ** 0.5
        torch.testing.assert_close(before - param.detach(), 0.1 * scale * alone, atol=1e-5, rtol=1e-4)


def test_everything_else_is_adamw() -> None:
    ours, theirs = (nn.Parameter(normal(6)) for _ in range(2))
    given = {"params": [ours], "orthogonal": False, "weight_decay": 0.1}
    one = Muon([given], lr=0.2, momentum=0.8, beta2=0.9, aux_lr=0.5)
    other = torch.optim.AdamW([theirs], lr=0.1, betas=(0.8, 0.9), weight_decay=0.1)
    (group,) = one.param_groups
    assert (group["lr"], group["lr_scale"]) == (0.1, 0.5)
    for step in range(3):
        with_gradients(ours, seed=step)
        with_gradients(theirs, seed=step)
        one.step()
        other.step()
    torch.testing.assert_close(ours, theirs)


# --- in a network ---


def cnn_groups(network: nn.Module) -> list[dict[str, Any]]:
    hidden = hidden_matrices(network)
    named = list(network.named_parameters())
    return [
        {"params": [p for name, p in named if name in hidden]},
        {"params": [p for name, p in named if name not in hidden], "orthogonal": False},
    ]


def deep_model(seed: int = 0) -> nn.Sequential:
    """Stem, two hidden convolutions of one shape, and a head."""
    torch.manual_seed(seed)
    hidden = [layer for _ in range(2) for layer in (nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), *hidden, *head)


def losses(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Iterator[float]:
    images, targets = normal(12, 3, 6, 6, seed=3), torch.arange(12) % 3
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(images), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


def test_the_matrices_are_those_between_stem_and_head() -> None:
    assert hidden_matrices(Cnn().build(10, Size(32, 32))) == {f"{index}.weight" for index in (3, 6, 9, 12, 15, 18)}
    assert hidden_matrices(tiny_model()) == set()
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=3)
    names = hidden_matrices(vit)
    assert names == {f"blocks.0.{n}.weight" for n in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}


def test_it_continues_from_its_state_as_if_never_stopped() -> None:
    network = deep_model().to(memory_format=LAST)
    optimizer = Muon(cnn_groups(network), lr=0.05)
    list(losses(network, optimizer, 3))
    file = BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    copy = deepcopy(network)
    resumed = Muon(cnn_groups(copy), lr=0.3)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert list(losses(network, optimizer, 3)) == list(losses(copy, resumed, 3))
    assert_same(resumed.state_dict(), optimizer.state_dict())


# --- on a GPU ---


@needs_gpu
def test_a_captured_step_sees_the_learning_rate_change() -> None:
    cuda = torch.device("cuda")
    networks = [deep_model().to(cuda, memory_format=LAST) for _ in range(2)]  # type: ignore[call-overload]
    rate = torch.tensor(0.05, device=cuda)
    eager, captured = (Muon(cnn_groups(network), lr=lr) for network, lr in zip(networks, (0.05, rate), strict=True))
    for group in captured.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
    for network in networks:
        with_gradients(*network.parameters())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        captured.step()
    torch.cuda.current_stream().wait_stream(stream)
    eager.step()
    replay = recorded(captured.step)
    for factor in (1.0, 0.5, 0.1):
        for ours, theirs in zip(eager.param_groups, captured.param_groups, strict=True):
            ours["lr"] = 0.05 * factor * ours.get("lr_scale", 1.0)
            theirs["lr"].fill_(ours["lr"])
        replay()
        eager.step()
    for ours, theirs in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
