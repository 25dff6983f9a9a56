"""The learning rate range test: how curves are read, on a toy whose limit is known, and from the command line."""

import json
import math

import pytest
import torch
from fakes import MemoryLoader, make_learner, on
from PIL import Image
from red_and_blue import write_folder
from torch import nn

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.run.config.schema import parse_config
from trainer.tools.find_lr import LRFinder, find_lr, main, read_curve, smooth, suggest_rate

# --- reading a curve ---


def test_the_average_by_hand():
    # 40 steps: a memory of two, so that each step weighs as much as all before it; the first is itself.
    assert smooth([4, 1, 1], 40) == pytest.approx([4, (1 + 4 / 2) / 1.5, (1 + (1 + 4 / 2) / 2) / 1.75])


@pytest.mark.parametrize(("loss", "end"), [(4.0, 12), (4.2, 10), (math.nan, 10), (math.inf, 10)])
def test_a_curve_ends_where_the_loss_explodes(loss, end):
    losses = [1.0] * 10 + [loss, 1.0]
    assert len(read_curve([2.0**step for step in range(12)], losses, 12).losses) == end


@pytest.mark.parametrize(("ending", "falls"), [([0.1], True), ([0.1, math.nan], False), ([0.1, 0.15], False)])
def test_a_curve_that_still_falls_at_its_end(ending, falls):
    losses = [1.0, 0.8, 0.6, 0.4, 0.2, *ending]
    assert read_curve([2.0**step for step in range(len(losses))], losses, len(losses)).still_falls == falls


def test_the_suggestion_of_a_curve_by_hand():
    lrs = [10.0**e for e in range(-7, 3)]
    smoothed = [3.0, 3.0, 2.8, 1.2, 1.1, 1.0, 0.9, 0.7, 1.5, 3.0]
    assert suggest_rate(lrs, smoothed) == suggest_rate(lrs, smoothed, skip=5) == pytest.approx(lrs[7] / 3)
    assert suggest_rate(lrs, smoothed, skip=6) is None


@pytest.mark.parametrize(("fall", "suggests"), [(-0.5, False), (0.0, False), (0.01, False), (0.03, True)])
def test_a_loss_that_hardly_falls_suggests_nothing(fall, suggests):
    """Chance alone makes it fall by a hundredth."""
    losses = [2.0 * (1 - fall * step / 9) for step in range(10)]
    assert (suggest_rate([2.0**step for step in range(10)], losses) is not None) == suggests


# --- a toy: least squares, whose largest stable rate is known ---

WIDTH = 48  # values of an image of 4 x 4 px


def regression():
    """Images of which a linear function is to be found; no noise."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 4, 4, generator=generator)
    targets = images.flatten(1) @ torch.randn(WIDTH, 1, generator=generator)
    return MemoryLoader(images, targets, batch_size=16)


def learner(*callbacks, lr=0.1, epochs=60, loss=nn.functional.mse_loss, accumulate=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 1, bias=False))
    return make_learner(
        *callbacks,
        model=model,
        train=regression(),
        val=regression(),
        loss_function=loss,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr),
        epochs=epochs,
        accumulate=accumulate,
    )


def final_loss(lr):
    trained = learner(lr=lr, epochs=10)
    trained.fit()
    with torch.no_grad():
        loader = regression()
        return nn.functional.mse_loss(trained.model(loader.images), loader.targets).item()


def test_the_suggested_rate_learns_and_a_hundred_times_as_much_diverges():
    finder = LRFinder()
    learner(finder).fit()
    peak = finder.curve().suggestion
    # 2 / the largest curvature of a batch of 16, about (1 + sqrt(48 / 16))^2 times the 2 of a mean square: about 0.13.
    assert peak is not None
    assert 0.005 < peak < 0.13
    start = final_loss(1e-12)
    assert final_loss(peak) < 0.3 * start
    assert not final_loss(100 * peak) < 100 * start


def test_the_rate_rises_exponentially_and_the_batches_of_a_step_have_one():
    def seen(**options):
        finder, lrs = LRFinder(1e-8, 1e-6, 21), []
        watch = on("before_batch", lambda learner: lrs.append(learner.optimizer.param_groups[0]["lr"]))
        learner(finder, watch, **options).fit()
        return finder.curve(), lrs

    single, lrs = seen()  # the fit ends with the last of them
    assert lrs == pytest.approx([10 ** (-8 + i / 10) for i in range(21)])
    assert list(single.lrs) == pytest.approx(lrs)
    curve, lrs = seen(accumulate=3)  # four batches: a step of three, and one of the last
    assert curve.lrs == single.lrs
    assert lrs == pytest.approx([curve.lrs[2 * (i // 4) + (i % 4 == 3)] for i in range(len(lrs))])
    # At rates this small all losses are those of the first weights.
    assert curve.losses[0] == pytest.approx(sum(single.losses[:3]) / 3, rel=1e-4)
    assert curve.losses[1] == pytest.approx(single.losses[3], rel=1e-4)


@pytest.mark.parametrize("after", [60, 0])
def test_a_loss_that_becomes_nan_ends_the_curve(after):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        return nn.functional.mse_loss(outputs, targets) * (math.nan if len(calls) > after else 1)

    finder = LRFinder(1e-5, 1e-2, 100)
    learner(finder, loss=loss).fit()
    assert len(calls) == after + 10  # the losses come to the host every ten steps
    if after:
        assert len(finder.curve().losses) == 60
        return
    with pytest.raises(UserError, match=r"explodes in the first two steps .*nan.* --from"):
        finder.curve()


# --- of a configuration ---


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = write_folder(tmp_path_factory.mktemp("photos") / "photos")
    return ["data=folder", f"data.root={root}", "aug.size=16", "fit.batch_size=8", "fit.device=cpu", "fit.threads=1"]


@pytest.mark.slow
def test_the_command_writes_a_curve_and_says_what_to_type(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # The stages of a fit have other sizes, and not as many epochs as the test.
    stages = ["fit.epochs=2", "fit.stages={a: {epochs: 1, size: 8}, b: {epochs: 1}}"]
    assert main([*small, *stages, "--steps", "40"]) == 0
    (figure,) = tmp_path.glob("outputs/*/*-find_lr/lr_find.png")
    with Image.open(figure) as image:
        assert image.size[0] > 400
    written = json.loads(figure.with_suffix(".json").read_text())
    assert len(written["lrs"]) == len(written["losses"]) <= 40
    assert written["config"]["fit"]["batch_size"] == 8
    assert 1e-5 < written["suggestion"] < 3
    assert written["losses"][0] == pytest.approx(math.log(2), abs=0.5)
    out = capsys.readouterr().out
    assert f"{len(written['lrs'])} steps, learning rate {written['lrs'][0]:.2g} to {written['lrs'][-1]:.2g}\n" in out
    assert f"fit.lr={written['suggestion']:.2g}," in out
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.slow
def test_gradients_are_clipped_as_in_the_run(small):
    config = parse_config(compose([*small, "callbacks.grad_clip.max_norm=1e-9"]))
    assert len(find_lr(config, 1, 1000, 20).losses) == 20  # nothing is learned, and nothing explodes
