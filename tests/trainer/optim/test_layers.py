"""Layers: in order from the stem to the head, each parameter in one."""

from fakes import tiny_model
from lazily import LazyModule
from torch import nn

from augment.params import Size
from trainer.models.registry import Cnn
from trainer.optim.layers import layer_of

timm = LazyModule("timm")


class Split(nn.Module):
    """As many networks are: a body in a row, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 4, 1)))
        self.classifier = nn.Linear(4, 2)


def test_a_norm_belongs_to_the_layer_before_it() -> None:
    assert layer_of(tiny_model()) == {"0.weight": 0, "1.weight": 0, "1.bias": 0, "6.weight": 1}
    layers = layer_of(Cnn().build(10, Size(32, 32)))
    assert (layers["0.weight"], layers["2.bias"], layers["3.weight"], layers["23.weight"]) == (0, 0, 1, 7)
    assert sorted(set(layers.values())) == list(range(8))


def test_what_holds_others_in_a_row_is_looked_into() -> None:
    fine = {"features.0": 0, "features.1": 0, "features.2.0": 1, "classifier": 2}
    assert {name.rpartition(".")[0]: number for name, number in layer_of(Split()).items()} == fine
    coarse = {"features.0": 0, "features.1": 0, "features.2.0": 0, "classifier": 1}
    assert {name.rpartition(".")[0]: number for name, number in layer_of(Split(), coarse=True).items()} == coarse
    wrapped = nn.ModuleDict({"model": Split()})
    assert [*layer_of(wrapped, coarse=True).values()] == [*layer_of(Split(), coarse=True).values()]
    assert [*layer_of(wrapped)] == [name for name, _ in wrapped.named_parameters()]


def test_a_model_of_timm_says_it_itself() -> None:
    network = timm.create_model("resnet18", num_classes=3)
    fine, coarse = layer_of(network), layer_of(network, coarse=True)
    assert {*fine} == {*coarse} == {name for name, _ in network.named_parameters()}
    assert (fine["conv1.weight"], fine["layer1.1.conv1.weight"], fine["fc.weight"]) == (0, 2, 9)
    assert (coarse["conv1.weight"], coarse["layer1.1.conv1.weight"], coarse["fc.weight"]) == (0, 1, 5)
