"""Optimizers by name: each gets the settings under its own names, and a mistake is one readable error."""

import re
from io import BytesIO
from typing import Any

import pytest
import torch
from fakes import needs_gpu, noise_loader, tiny_model
from torch import nn

from augment.params import Size
from augment.support.errors import UserError
from trainer.models.registry import Cnn
from trainer.optim.optimizers import make_optimizer, parameter_groups, set_value
from trainer.optim.settings import OptimizerSettings

SMALL = {"lr": 0.01, "weight_decay": 0.02}


def made(network: nn.Module | None = None, **settings: Any) -> torch.optim.Optimizer:
    return make_optimizer(OptimizerSettings(**settings), tiny_model() if network is None else network)


def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    batch = next(iter(noise_loader(device=next(network.parameters()).device)))
    nn.functional.cross_entropy(network(batch.images), batch.targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("settings", "cls", "expected"),
    [
        ({"nesterov": True}, "SGD", {"momentum": 0.9, "nesterov": True, "foreach": True}),
        ({"optimizer_options": {"dampening": 0.5}}, "SGD", {"dampening": 0.5}),
        ({"optimizer": "adamw", "momentum": 0.8}, "AdamW", {"betas": (0.8, 0.999), "eps": 1e-8}),
        ({"optimizer": "muon", "momentum": 0.95}, "Muon", {"momentum": 0.95, "beta2": 0.999, "nesterov": True}),
        ({"optimizer": "muon", "beta2": 0.9, "nesterov": False}, "Muon", {"beta2": 0.9, "nesterov": False}),
        ({"optimizer": "lion", "momentum": 0.95}, "Lion", {"betas": (0.95, 0.99)}),
        ({"optimizer": "adan", "beta2": 0.5}, "Adan", {"betas": (0.98, 0.5, 0.99)}),
        ({"optimizer": "lambc", "optimizer_options": {"trust_clip": True}}, "Lamb", {"trust_clip": True}),
    ],
)
def test_settings_reach_the_optimizer(settings: dict[str, Any], cls: str, expected: dict[str, Any]) -> None:
    optimizer = made(**SMALL, **settings)
    assert type(optimizer).__name__ == cls
    for group in optimizer.param_groups:
        assert {name: group[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("sgd", "momentum", 0.9),
        ("rmsprop", "momentum", 0.9),  # whose default is 0
        ("muon", "momentum", 0.95),
        ("adamw", "betas", (0.9, 0.999)),
        ("adan", "betas", (0.98, 0.92, 0.99)),
        ("novograd", "betas", (0.95, 0.98)),
    ],
)
def test_without_a_momentum_optimizers_have_their_own(name: str, key: str, expected: Any) -> None:
    assert made(optimizer=name).param_groups[0][key] == expected


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon", "lamb"])
def test_a_step_moves_everything(name: str) -> None:
    network = tiny_model()
    optimizer = made(network, optimizer=name, **SMALL)
    before = [p.detach().clone() for p in network.parameters()]
    step(network, optimizer)
    assert not any(torch.equal(p, old) for p, old in zip(network.parameters(), before, strict=True))


# --- groups ---


def named_groups(network: nn.Module, **settings: Any) -> list[tuple[set[str], dict[str, Any]]]:
    names = {id(p): name for name, p in network.named_parameters()}
    groups = parameter_groups(network, OptimizerSettings(**settings))
    found = [({names[id(p)] for p in g["params"]}, {n: v for n, v in g.items() if n != "params"}) for g in groups]
    assert sorted(name for group, _ in found for name in group) == sorted(names.values())
    return found


def test_norms_and_biases_do_not_decay() -> None:
    rest = {"lr": 0.02, "lr_scale": 1.0}
    decaying, plain = named_groups(Cnn().build(3, Size(32, 32)), weight_decay=0.1)
    assert decaying[1] == rest | {"weight_decay": 0.1}
    assert plain[1] == rest | {"weight_decay": 0.0}
    assert {name.split(".")[1] for name in decaying[0]} == {"weight"}
    assert {"23.bias", "2.weight", "2.bias"} <= plain[0]
    assert "23.weight" in decaying[0]
    ((_, group),) = named_groups(Cnn().build(3, Size(32, 32)), weight_decay=0.1, decay_norms=True)
    assert group["weight_decay"] == 0.1
    assert len(named_groups(Cnn().build(3, Size(32, 32)), weight_decay=0)) == 1


def test_each_layer_learns_slower_than_the_next_one() -> None:
    found = named_groups(Cnn().build(3, Size(32, 32)), weight_decay=0, layer_decay=0.5, lr=0.8)
    assert [group["lr_scale"] for _, group in found] == [0.5**k for k in range(8)]
    assert [group["lr"] for _, group in found] == pytest.approx([0.8 * 0.5**k for k in range(8)])
    assert found[0][0] == {"23.weight", "23.bias"}
    assert found[-1][0] == {"0.weight", "2.weight", "2.bias"}


def test_muons_matrices_come_first_and_the_others_learn_slower() -> None:
    groups = made(
        Cnn().build(3, Size(32, 32)), optimizer="muon", lr=0.1, optimizer_options={"aux_lr": 0.5}
    ).param_groups
    assert [(g["orthogonal"], g["lr"], g["lr_scale"], g["weight_decay"]) for g in groups] == [
        (True, 0.1, 1.0, 5e-4),
        (False, 0.05, 0.5, 5e-4),
        (False, 0.05, 0.5, 0.0),
    ]
    assert [len(g["params"]) for g in groups] == [6, 2, 15]


# --- mistakes ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "sdg"},
            "fit.optimizer: unknown optimizer 'sdg'. Did you mean 'sgd'? Set one of sgd, adamw, muon, or one of",
        ),
        ({"optimizer": "adahessian"}, "fit.optimizer=adahessian: it needs second derivatives"),
        ({"optimizer": "bnbsgd"}, "fit.optimizer=bnbsgd: "),
        ({"eps": 1e-3}, "fit.eps=0.001: sgd has no eps. Set it to null."),
        ({"optimizer": "adamw", "nesterov": True}, "fit.nesterov=True: adamw has no nesterov."),
        ({"nesterov": True, "momentum": 0.0}, "fit.optimizer=sgd: Nesterov momentum requires a momentum"),
        ({"optimizer": "adafactor", "momentum": 0.5}, "fit.momentum=0.5: adafactor has no momentum. Set it to null."),
        (
            {"optimizer_options": {"dampenin": 1}},
            "fit.optimizer_options.dampenin: unknown key. Did you mean 'dampening'?",
        ),
        (
            {"optimizer_options": {"momentum": 1}},
            "fit.optimizer_options.momentum: unknown key. ",
        ),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        made(**settings)


# --- capturing ---


def test_a_scheduled_value_reaches_tensors_shares_and_betas() -> None:
    rate = torch.tensor(0.0)
    group: dict[str, Any] = {"lr": rate, "lr_scale": 0.5, "betas": (0.9, 0.99)}
    for name, value in (("lr", 0.25), ("momentum", 0.8), ("weight_decay", 0.1)):
        set_value(group, name, value)
    assert group == {"lr": rate, "lr_scale": 0.5, "betas": (0.8, 0.99), "weight_decay": 0.1}
    assert rate.item() == 0.125
    group = {"lr": 0.0, "momentum": 0.9, "betas": (0.5, 0.99)}
    set_value(group, "momentum", 0.8)
    assert group == {"lr": 0.0, "momentum": 0.8, "betas": (0.5, 0.99)}


def test_a_checkpoint_of_another_device_does_not_say_how_steps_are_made() -> None:
    for name, key in (("sgd", "fused"), ("adamw", "capturable")):
        network = tiny_model()
        optimizer = made(network, optimizer=name)
        step(network, optimizer)
        state = optimizer.state_dict()
        for group in state["param_groups"]:
            group |= {"foreach": False, key: True, "lr": 0.5}
        optimizer.load_state_dict(state)
        assert [(g["foreach"], bool(g[key]), g["lr"]) for g in optimizer.param_groups] == [(True, False, 0.5)] * 2
        step(network, optimizer)


@needs_gpu
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_a_state_goes_from_a_gpu_to_a_cpu_and_back(name: str) -> None:
    """Read to the device of the run, as checkpoints are."""

    def through_a_file(optimizer: torch.optim.Optimizer, device: str) -> dict[str, Any]:
        file = BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        return state

    network, other = tiny_model(), tiny_model().cuda()
    there, here = made(other, optimizer=name), made(network, optimizer=name)
    step(other, there)
    here.load_state_dict(through_a_file(there, "cpu"))
    step(network, here)
    there.load_state_dict(through_a_file(here, "cuda"))
    step(other, there)
