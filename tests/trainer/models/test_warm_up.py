"""A step ahead of the first one changes nothing of the run."""

import torch
from torch import Tensor, nn

from trainer.loop.settings import LoopSettings
from trainer.models.warm_up import warm_up


class Counting(nn.Module):
    """Counts, over all copies, the batches it is given and their shapes."""

    shapes: list[tuple[int, ...]] = []  # noqa: RUF012  (shared with copies on purpose)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        out: Tensor = self.layers(x)
        return out


def test_it_makes_a_step_and_leaves_the_model_and_the_random_numbers_alone() -> None:
    Counting.shapes.clear()
    model = Counting()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps: list[nn.Module] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            super().step(closure)
            steps.append(network)

    def optimizer(twin: nn.Module) -> torch.optim.Optimizer:
        nonlocal network
        network = twin
        return Watched(twin.parameters(), 0.1)

    network: nn.Module = model
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    warm_up(model, optimizer, batch_size=5, size=16, half=False, autocast=LoopSettings().autocast)
    assert torch.equal(torch.rand(3), expected)
    assert Counting.shapes == [(5, 3, 16, 16)]
    assert len(steps) == 1
    assert steps[0] is not model
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_a_run_of_single_images_whose_norms_are_frozen_is_warmed_up_too() -> None:
    Counting.shapes.clear()
    warm_up(
        Counting(),
        lambda twin: torch.optim.SGD(twin.parameters(), 0.1),
        batch_size=1,
        size=3,
        half=False,
        autocast=LoopSettings().autocast,
    )
    assert Counting.shapes == [(2, 3, 3, 3)]
