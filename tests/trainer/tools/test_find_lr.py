"""The learning rate range test: how curves are read, on a toy whose limit is known, and from the command line."""

import json
import math

import pytest
import torch
from fakes import CPU, MemoryLoader, make_learner, needs_gpu, on
from PIL import Image
from torch import nn
from torch.overrides import TorchFunctionMode

from augment.cli.compose import compose
from augment.support.errors import UserError
from trainer.run.config import parse_config
from trainer.tools.find_lr.command import LRFinder, find_lr, main
from trainer.tools.find_lr.curve import descent, explosion, read_curve, smooth, suggest_rates

# --- reading a curve ---


def test_the_average_by_hand():
    # 40 steps: a memory of two, so that each step weighs as much as all before it; the first is itself.
    assert smooth([4, 1, 1], 40) == pytest.approx([4, (1 + 4 / 2) / 1.5, (1 + (1 + 4 / 2) / 2) / 1.75])
    assert smooth([3.0] * 50, 100) == pytest.approx([3.0] * 50)


@pytest.mark.parametrize(
    ("smoothed", "step"),
    [
        ([2, 1, 4, 3], 4),
        ([2, 1, 4.1, 1], 2),
        ([2, math.nan, 1], 1),
        ([2, math.inf], 1),
        ([math.nan], 0),
        ([], 0),
    ],
)
def test_where_a_loss_explodes(smoothed, step):
    assert explosion(smoothed) == step


def test_the_longest_descent_passes_over_bumps():
    assert [[9, 8, 7, 8.5, 6, 5][i] for i in descent([9, 8, 7, 8.5, 6, 5])] == [9, 8, 7, 6, 5]
    # The longest, not the first nor the deepest.
    values = [5, 1, 4, 3.5, 3, 2]
    assert [values[i] for i in descent(values)] == [5, 4, 3.5, 3, 2]
    assert len(descent([1, 1, 1])) == 1
    assert descent([]) == []


def test_suggestions_of_a_curve_by_hand():
    lrs = [10.0**e for e in range(-7, 3)]
    smoothed = [3.0, 3.0, 2.8, 1.2, 1.1, 1.0, 0.9, 0.7, 1.5, 3.0]
    rates = suggest_rates(lrs, smoothed)
    assert rates["peak"] == pytest.approx(lrs[7] / 3)
    assert rates["steepest"] == lrs[2]  # its neighbors are 1.8 apart
    assert rates["valley"] == lrs[4]  # the middle one of the seven from 3.0 to 0.7
    assert suggest_rates(lrs, smoothed, skip=5)["steepest"] == lrs[6]


@pytest.mark.parametrize("losses", [[2.0] * 100, [2.0 + 0.01 * i for i in range(100)]])
def test_a_loss_that_does_not_fall_suggests_nothing(losses):
    curve = read_curve([10.0 ** (i / 20) for i in range(100)], losses, 100)
    assert curve.suggestion is None


# --- a toy: least squares, whose largest stable rate is known ---

WIDTH = 48  # values of an image of 4 x 4 px


@pytest.mark.parametrize(("fall", "suggests"), [(0.01, False), (0.03, True)])
def test_a_loss_that_hardly_falls_suggests_nothing(fall, suggests):
    """Chance alone makes it fall by a hundredth."""
    losses = [2.0 * (1 - fall * step / 9) for step in range(10)]
    assert bool(suggest_rates([2.0**step for step in range(10)], losses)) == suggests


def regression(device=CPU):
    """Images of which a linear function is to be found; no noise."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 4, 4, generator=generator)
    targets = images.flatten(1) @ torch.randn(WIDTH, 1, generator=generator)
    return MemoryLoader(images.to(device), targets.to(device), batch_size=16)


def learner(*callbacks, lr=0.1, epochs=60, loss=nn.functional.mse_loss, device=CPU, accumulate=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 1, bias=False))
    return make_learner(
        *callbacks,
        model=model,
        train=regression(device),
        val=regression(device),
        device=device,
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
    rates = finder.curve().rates
    # 2 / the largest curvature of a batch of 16, about (1 + sqrt(48 / 16))^2 times the 2 of a mean square: about 0.13.
    assert 0.005 < rates["peak"] < 0.13
    assert rates["valley"] < 0.13
    assert rates["steepest"] < 0.13
    start = final_loss(1e-12)
    assert final_loss(rates["peak"]) < 0.3 * start
    assert not final_loss(100 * rates["peak"]) < 100 * start


def test_the_rate_rises_exponentially_over_the_steps_and_the_fit_ends():
    lrs, passes = [], []

    class Watch(LRFinder):
        def after_batch(self, learner):
            lrs.append(learner.optimizer.param_groups[0]["lr"])
            super().after_batch(learner)

        def before_train(self, learner):
            passes.append(learner.epoch)

    finder = Watch(1e-8, 1e-6, 21)
    learner(finder).fit()
    assert lrs == pytest.approx([10 ** (-8 + i / 10) for i in range(21)])
    assert list(finder.curve().lrs) == pytest.approx(lrs)
    assert passes == list(range(6))  # of four batches


def test_the_batches_of_a_step_have_one_rate_and_their_mean_loss_counts():
    def seen(**options):
        finder, lrs = LRFinder(1e-8, 1e-6, 21), []
        watch = on("after_batch", lambda learner: lrs.append(learner.optimizer.param_groups[0]["lr"]))
        learner(finder, watch, **options).fit()
        return finder.curve(), lrs

    curve, lrs = seen(accumulate=3)  # four batches: a step of three, and one of the last
    assert list(curve.lrs) == pytest.approx([10 ** (-8 + i / 10) for i in range(21)])
    assert lrs == pytest.approx([curve.lrs[2 * (i // 4) + (i % 4 == 3)] for i in range(len(lrs))])
    # At rates this small all losses are those of the first weights.
    single, _ = seen()
    assert curve.losses[0] == pytest.approx(sum(single.losses[:3]) / 3, rel=1e-4)
    assert curve.losses[1] == pytest.approx(single.losses[3], rel=1e-4)


def test_a_shorter_fit_is_used_up():
    finder = LRFinder(1e-8, 1e-6)
    learner(finder, epochs=2).fit()
    assert (len(finder.curve().lrs), finder.curve().lrs[-1]) == (8, pytest.approx(1e-6))


def test_it_stops_soon_after_the_loss_explodes_and_the_curve_ends_there():
    finder = LRFinder(1e-4, 1e4, 200)
    ended = learner(finder)
    ended.fit()
    curve = finder.curve()
    assert len(curve.losses) <= ended.step + 1 < len(curve.losses) + 11 < 200
    assert max(curve.smoothed) <= 4 * min(curve.smoothed) * 4


def test_the_losses_come_to_the_host_every_ten_steps():
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func.__name__ in {"item", "tolist", "cpu", "numpy", "__bool__", "__float__"}:
                seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        learner(LRFinder(1e-8, 1e-6, 40)).fit()
    assert seen == ["tolist"] * 3


@needs_gpu
def test_the_curve_of_the_gpu():
    curves = []
    for device in (CPU, torch.device("cuda")):
        finder = LRFinder(1e-4, 0.1, 60)
        learner(finder, device=device).fit()
        curves.append(finder.curve())
    assert curves[1].losses == pytest.approx(curves[0].losses, rel=1e-2)
    assert curves[1].suggestion == pytest.approx(curves[0].suggestion, rel=0.5)


def test_a_loss_that_becomes_nan_ends_the_curve():
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        value = nn.functional.mse_loss(outputs, targets)
        return value * math.nan if len(calls) > 60 else value

    finder = LRFinder(1e-5, 1e-2, 100)
    learner(finder, loss=loss).fit()
    curve = finder.curve()
    assert len(curve.losses) == 60
    assert len(calls) == 70
    assert all(map(math.isfinite, curve.losses))


def test_a_loss_that_is_nan_at_once_is_said():
    finder = LRFinder()
    learner(finder, loss=lambda outputs, targets: outputs.sum() * math.nan).fit()
    with pytest.raises(UserError, match=r"the training loss is nan in the first steps. Allowed: a smaller --from"):
        finder.curve()


# --- of a configuration ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes that differ in their color, eight images each."""
    root = tmp_path_factory.mktemp("photos")
    for split in ("train", "val"):
        for name, color in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
            (root / split / name).mkdir(parents=True)
            for i in range(8):
                pixels = tuple(min(255, value + 5 * i) for value in color)
                Image.new("RGB", (16, 16), pixels).save(root / split / name / f"{i}.png")
    return root


def small(folder):
    return ["data=folder", f"data.root={folder}", "aug.size=16", "fit.batch_size=8", "fit.device=cpu", "fit.threads=1"]


def test_a_configuration_is_tried_and_its_model_left_alone(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The stages of a fit have other sizes, and not as many epochs as the test.
    stages = ["fit.epochs=2", "fit.stages={a: {epochs: 1, size: 8}, b: {epochs: 1}}"]
    curve = find_lr(parse_config(compose([*small(folder), *stages])), 1e-6, 10.0, 40)
    assert 1e-5 < curve.suggestion < 3
    assert curve.losses[0] == pytest.approx(math.log(2), abs=0.5)
    assert not list(tmp_path.glob("outputs/2*"))


@pytest.mark.slow
def test_the_command_writes_and_says_what_to_type(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*small(folder), "--steps", "30", "--to", "1"]) == 0
    (figure,) = tmp_path.glob("outputs/*/*-find_lr/lr_find.png")
    with Image.open(figure) as image:
        assert image.size[0] > 400
    written = json.loads(figure.with_suffix(".json").read_text())
    assert len(written["lrs"]) == len(written["losses"]) <= 30
    assert written["config"]["fit"]["batch_size"] == 8
    out = capsys.readouterr().out
    assert f"{len(written['lrs'])} steps, learning rate {written['lrs'][0]:.2g} to {written['lrs'][-1]:.2g}\n" in out
    assert f"fit.lr={written['suggestion']:.2g}," in out
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "0"], "argument --from: '0' is not allowed. Allowed: a number above 0"),
        (["--from", "1", "--to", "0.1"], "--from 1 --to 0.1: not allowed. Allowed: numbers above 0, the second the"),
        (["--steps", "3"], "argument --steps: '3' is not allowed. Allowed: a whole number from 20"),
        (["--step", "30"], "--step: unknown flag. Did you mean '--steps'?"),
        (["--out", "a.jpg"], "argument --out: 'a.jpg' is not allowed. Allowed: the name of a file that ends in .png"),
        (["fit.epoch=3"], "fit.epoch: unknown key. Did you mean 'epochs'?"),
        (["fit.resume=x"], "fit.resume: the test starts with fresh weights. Allowed: null."),
    ],
)
def test_mistakes(arguments, message, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main([*small(folder), *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("outputs/2*"))
