"""Losses of tasks, and by name: values, options, weights, smoothing, mixed targets, and those of plugins."""

import re
import sys
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path

import pytest
import torch
from fakes import CPU
from red_and_blue import write_folder
from runs import BARE, rows_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy, one_hot

from augment.cli.compose import compose
from augment.params import settings
from augment.support.errors import UserError
from augment.support.user_code import OwnCodeError
from trainer.run.config.checks import check_config
from trainer.run.config.fit import parse_fit
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.tasks.loss import LOSSES, ClassLoss, LabelLoss, LossFunction, LossSettings
from trainer.tasks.named_losses import pixel_loss
from trainer.tasks.registry import known_tasks, task_named, unused_settings
from trainer.tasks.regress import mean_and_std, standardize
from trainer.tasks.trial import check_loss

OUTPUTS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 0.3]])
INDICES = torch.tensor([0, 2])
MIXED = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]])
LABELS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
WEIGHTS = torch.tensor([0.25, 1.0, 4.0])


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Take out of the registry what a test put there."""
    known_tasks()
    before = dict(LOSSES)
    yield
    LOSSES.clear()
    LOSSES.update(before)


def both(task: str, fit: dict[str, object], weights: Tensor | None = None) -> tuple[LossFunction, LossFunction]:
    return task_named(task).make_losses(parse_fit(fit), nn.Identity(), CPU, weights)


# --- the defaults of tasks ---


def test_settings_of_another_task_are_reported() -> None:
    fit = parse_fit({"label_smoothing": 0.1, "standardize": False})
    expected = ["fit.standardize=false has no effect, because the model predicts classes"]
    assert list(unused_settings(fit, task_named("classify"))) == expected
    expected = ["fit.label_smoothing=0.1 has no effect, because the model predicts numbers"]
    assert list(unused_settings(fit, task_named("regress"))) == expected


def test_validation_neither_smooths_nor_weights_and_has_the_default_loss() -> None:
    for task, expected in (("classify", ClassLoss()), ("multilabel", LabelLoss())):
        _, loss = both(task, {"loss": "focal", "label_smoothing": 0.1}, WEIGHTS)
        assert loss == expected
        assert getattr(loss, "weights", WEIGHTS) is None
    found = both("regress", {"loss": "mse"})[1](OUTPUTS, LABELS)
    torch.testing.assert_close(found, (OUTPUTS - LABELS).square().mean())


@pytest.mark.parametrize(("smoothing", "weights"), [(0.0, WEIGHTS), (0.1, WEIGHTS), (0.1, None)])
@pytest.mark.parametrize("name", [None, "cross_entropy", "ce"])
def test_an_image_counts_by_the_weight_of_its_class(name: str | None, smoothing: float, weights: Tensor | None) -> None:
    loss, _ = both("classify", {"loss": name, "label_smoothing": smoothing}, weights)
    by_class = torch.ones(3) if weights is None else weights
    for targets in (INDICES, one_hot(INDICES, 3).float(), MIXED):
        shares = one_hot(targets, 3).float() if targets.ndim == 1 else targets
        smoothed = shares * (1 - smoothing) + smoothing / 3
        each = shares @ by_class
        expected = (-(smoothed * OUTPUTS.log_softmax(1)).sum(1) * each).sum() / each.sum()
        torch.testing.assert_close(loss(OUTPUTS, targets), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("name", [None, "bce"])
def test_a_label_counts_by_the_weight_of_its_given_target(
    name: str | None, smoothing: float, weights: torch.Tensor | None
) -> None:
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.3, 0.0]])
    wanted = targets * (1 - smoothing) + smoothing / 2
    found = both("multilabel", {"loss": name, "label_smoothing": smoothing}, weights)[0](OUTPUTS, targets)
    each = F.binary_cross_entropy_with_logits(OUTPUTS, wanted, reduction="none")
    by_label = 1.0 if weights is None else weights * targets + 1 - targets
    torch.testing.assert_close(found, (each * by_label).mean(), atol=1e-6, rtol=0)


# --- by name ---


P, LOGS = OUTPUTS.softmax(1), OUTPUTS.log_softmax(1)
Q = OUTPUTS.sigmoid()


@pytest.mark.parametrize(
    ("task", "fit", "expected"),
    [
        ("classify", {"loss": "focal"}, lambda y: -(y * (1 - P) ** 2 * LOGS).sum(1)),
        ("classify", {"loss": "focal", "loss_options": {"gamma": 0.5}}, lambda y: -(y * (1 - P) ** 0.5 * LOGS).sum(1)),
        ("classify", {"loss": "poly"}, lambda y: -(y * LOGS).sum(1) + 2 * (1 - (y * P).sum(1))),
        ("classify", {"loss": "bce"}, lambda y: -(y * Q.log() + (1 - y) * (1 - Q).log())),
        (
            "classify",
            {"loss": "bce", "loss_options": {"target_threshold": 0.4}},
            lambda y: -((y > 0.4) * Q.log() + (y <= 0.4) * (1 - Q).log()),
        ),
        # The formulas of the papers, and the clamp of the published code of sce (Wang et al. 2019).
        ("classify", {"loss": "gce"}, lambda y: (y * (1 - P**0.7) / 0.7).sum(1)),
        ("classify", {"loss": "gce", "loss_options": {"q": 1.0}}, lambda y: 1 - (y * P).sum(1)),
        (
            "classify",
            {"loss": "sce", "loss_options": {"alpha": 6.0, "beta": 0.1}},
            lambda y: -6 * (y * LOGS).sum(1) - 0.1 * (P * y.clamp(1e-4, 1).log()).sum(1),
        ),
        ("classify", {"loss": "ce+focal"}, lambda y: -(y * (1 + (1 - P) ** 2) * LOGS).sum(1)),
        ("multilabel", {"loss": "focal"}, lambda y: -(y * (1 - Q) ** 2 * Q.log() + (1 - y) * Q**2 * (1 - Q).log())),
        (
            "multilabel",
            {"loss": "asymmetric"},
            lambda y: (
                -(y * (1 - Q) * Q.log() + (1 - y) * (Q - 0.05).clamp(0) ** 4 * (1 - Q + 0.05).clamp(max=1).log())
            ),
        ),
        ("multilabel", {"loss": "poly"}, lambda y: -(y * Q.log() + (1 - y) * (1 - Q).log()) + 2 * (y - Q).abs()),
        ("regress", {"loss": "l1"}, lambda y: (OUTPUTS - y).abs()),
        ("regress", {"loss": "huber+mse", "loss_options": {"delta": 0.5}},
         lambda y: F.huber_loss(OUTPUTS, y, reduction="none", delta=0.5) + (OUTPUTS - y).square()),
    ],
)  # fmt: skip
def test_values(task: str, fit: dict[str, object], expected: Callable[[Tensor], Tensor]) -> None:
    loss, _ = both(task, fit)
    if task == "classify":
        torch.testing.assert_close(loss(OUTPUTS, INDICES), expected(one_hot(INDICES, 3).float()).mean())
        torch.testing.assert_close(loss(OUTPUTS, MIXED), expected(MIXED).mean())
    else:
        torch.testing.assert_close(loss(OUTPUTS, LABELS), expected(LABELS).mean())


def test_asymmetric_of_classes_smooths_by_itself() -> None:
    loss, _ = both("classify", {"loss": "asymmetric", "label_smoothing": 0.1})
    y = one_hot(INDICES, 3).float()
    expected = -((y * 0.9 + 0.1 / 3) * (y * (1 - P) + (1 - y) * P**4) * LOGS).sum(1).mean()
    torch.testing.assert_close(loss(OUTPUTS, INDICES), expected)


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_a_sum_is_the_sum_of_smoothed_losses(task: str) -> None:
    def own(outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
        return (outputs.sum(1) + targets.sum() * (1 + smoothing))[:, None]

    LOSSES[task, "own"] = own
    targets = INDICES if task == "classify" else LABELS
    fits: list[dict[str, object]] = [{"loss": loss, "label_smoothing": 0.1} for loss in ("own+poly", "own", "poly")]
    both_terms, one, other = (task_named(task).named_loss(parse_fit(fit))(OUTPUTS, targets) for fit in fits)
    torch.testing.assert_close(both_terms, one + other)


@pytest.mark.parametrize("loss_name", ["gce", "sce"])
def test_losses_for_wrong_labels_have_a_slope_where_a_class_is_excluded(loss_name: str) -> None:
    outputs = torch.tensor([[200.0, 0.0, 0.0]]).requires_grad_()
    both("classify", {"loss": loss_name})[0](outputs, torch.tensor([1])).backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_focal_loss_has_a_slope_where_a_class_is_certain(task: str) -> None:
    outputs = torch.tensor([[40.0, 0.0, 0.0]])[(..., *[None] * (2 * (task == "segment")))].requires_grad_()
    loss, _ = both(task, {"loss": "focal", "loss_options": {"gamma": 0.5}})
    loss(outputs, torch.zeros(outputs[:, 0].shape, dtype=torch.int64)).backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weights"])
def test_smoothing_and_weights_are_those_of_the_default(smoothing: float, weights: Tensor | None) -> None:
    for task, name, targets in (("classify", "cross_entropy", INDICES), ("multilabel", "bce", LABELS)):
        fit: dict[str, object] = {"label_smoothing": smoothing}
        named, default = (both(task, {**fit, **more}, weights)[0] for more in ({"loss": name}, {}))
        if task == "classify" and smoothing and weights is not None:  # one weight for each image, not for each share
            each = cross_entropy(OUTPUTS, targets, reduction="none", label_smoothing=smoothing)
            expected = (each * WEIGHTS[targets]).sum() / WEIGHTS[targets].sum()
        elif task == "multilabel" and weights is not None:
            smooth = targets * (1 - smoothing) + smoothing / 2
            each = -(smooth * Q.log() + (1 - smooth) * (1 - Q).log())
            expected = (each * torch.where(targets > 0, WEIGHTS, 1)).mean()
        else:
            expected = default(OUTPUTS, targets)
        torch.testing.assert_close(named(OUTPUTS, targets), expected)
        if task == "classify":
            assert isinstance(named.weight_of(targets), Tensor) is (weights is not None)  # type: ignore[attr-defined]


def test_masks() -> None:
    outputs, targets = torch.randn(2, 3, 5, 5, generator=torch.manual_seed(0)), torch.arange(50).reshape(2, 5, 5) % 4
    train, val = both("segment", {"loss": "ce+dice", "label_smoothing": 0.1})
    for loss, smoothing in ((train, 0.1), (val, 0.0)):
        terms = pixel_loss(outputs, targets, terms=["cross_entropy", "dice"], smoothing=smoothing)
        assert torch.equal(loss(outputs, targets), terms)
    focal, _ = both("segment", {"loss": "focal", "loss_options": {"gamma": 0}})
    torch.testing.assert_close(focal(outputs, targets), pixel_loss(outputs, targets))
    assert torch.equal(both("segment", {})[0](outputs, targets), pixel_loss(outputs, targets))
    LOSSES["segment", "own"] = lambda o, t: o.flatten(1).sum(1)
    both_terms, _ = both("segment", {"loss": "own+ce"})
    torch.testing.assert_close(both_terms(outputs, targets), outputs.sum() / 2 + pixel_loss(outputs, targets))


@pytest.mark.parametrize("name", ["mse", "l1", "huber"])
def test_sums_of_numbers_are_pytorchs_to_the_bit(name: str) -> None:
    """As in all versions; a mean of means would round otherwise."""
    outputs = torch.randn(7, 3, generator=torch.manual_seed(0))
    function = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.huber_loss}[name]
    found, expected = (
        torch.autograd.grad(loss(given, torch.zeros_like(given)) * 0.3, given)[0]
        for loss in (both("regress", {"loss": name, "label_smoothing": 0.1})[0], function)
        for given in [outputs.clone().requires_grad_()]
    )
    assert torch.equal(found, expected)


def test_numbers_are_learned_in_standard_deviations() -> None:
    network = nn.Identity()
    standardize(network, *mean_and_std([[0.0], [20.0]]))
    loss, _ = task_named("regress").make_losses(parse_fit({"loss": "mae"}), network, CPU)
    assert loss(torch.tensor([[5.0]]), torch.tensor([[10.0]])) == 0.5


@pytest.mark.parametrize(
    ("task", "fit", "message"),
    [
        ("classify", {"loss": "focl"}, r"^fit\.loss=focl: the task classify has no loss 'focl'\. Did you mean 'focal'"),
        ("multilabel", {"loss": "ce+bce"}, r"no loss 'cross_entropy'\..* bce, focal, null, poly\. For"),
        ("detect", {"loss": "focal"}, r"the task detect has no loss 'focal'\. Allowed: null\. For your own loss"),
        ("classify", {"loss": "focal", "loss_options": {"gama": 1}}, r"^fit\.loss_options\.gama: .* mean 'gamma'"),
        ("classify", {"loss": "asymmetric", "loss_options": {"smoothing": 1}}, r"^fit\.loss_options\.smoothing: unkno"),
        ("classify", {"loss": "focal", "loss_options": {"gamma": "x"}}, r"^fit\.loss=focal: fails \("),
        (
            "classify",
            {"loss_options": {"gamma": 1}},
            r"^fit\.loss_options needs fit\.loss\. Remove .* cross_entropy",
        ),
        ("regress", {"loss": "mse", "label_smoothing": 0.1}, r"^fit\.label_smoothing=0\.1: fit\.loss=mse has no"),
        ("segment", {"loss": "dice", "label_smoothing": 0.1}, r"^fit\.label_smoothing=0\.1: fit\.loss=dice has no"),
    ],
)
def test_mistakes(task: str, fit: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_loss(task_named(task), parse_fit(fit), 3)


@pytest.mark.parametrize("labels", [1, 2, 3, 4])
@pytest.mark.parametrize("task", ["multilabel", "regress", "keypoints"])
def test_a_loss_of_the_wrong_shape_fails_whatever_the_number_of_outputs(task: str, labels: int) -> None:
    """Broadcasting would give a result if some dimensions were equal by chance."""
    wrong = {
        "per_output": lambda o, t: (o - t.flatten(1)[:, : o.shape[1]]).abs().mean(dim=0) * o[:, 0],
        "pairwise": lambda o, t: o[:, 0] - t.flatten(1)[:, :1],
    }
    for name, function in wrong.items():
        if name == "per_output" and labels == 1 and task != "keypoints":
            continue  # one number for all samples
        LOSSES[task, name] = function
        with pytest.raises(UserError, match=f"fit.loss={name}"):
            check_loss(task_named(task), parse_fit({"loss": name}), labels)


def test_what_a_loss_cannot_do_is_rejected() -> None:
    task, fit = task_named("classify"), parse_fit({"loss": "asymmetric"})
    check_loss(task, fit, 3, weighted=True)
    with pytest.raises(UserError, match=r"^fit\.loss=asymmetric: cannot take mixed .* aug\.train\.mixup\.$"):
        check_loss(task, fit, 3, mixing="aug.train.mixup")
    check_loss(task, parse_fit({"loss": "focal", "label_smoothing": 0.1}), 3, mixing="aug.train.mixup", weighted=True)
    for name, function, message in (
        ("mean", lambda o, t: o.mean(), r"^data\.balance=weights needs .* per sample, .*fit\.loss=mean .* per batch\."),
        ("odd", lambda o, t: o.sum(0), r"^fit\.loss=odd returns shape \(3,\) for 4 samples\. Return one"),
        ("number", lambda o, t: 1.0, r"^fit\.loss=number: fails"),
    ):
        LOSSES["classify", name] = function
        with pytest.raises(UserError, match=message):
            check_loss(task, parse_fit({"loss": name}), 3, weighted=True)
    LOSSES["multilabel", "rows"] = lambda o, t: (o - t).square().mean(1)
    check_loss(task_named("multilabel"), parse_fit({"loss": "rows"}), 3)
    message = r"^data\.balance=weights needs .* per label, but fit\.loss=rows .* per sample\."
    with pytest.raises(UserError, match=message):
        check_loss(task_named("multilabel"), parse_fit({"loss": "rows"}), 3, weighted=True)


def test_an_own_loss_that_raises_is_reported_with_its_line() -> None:
    LOSSES["classify", "broken"] = lambda o, t, power=1: o.foo()
    for options, remedy in (({}, ""), ({"power": 2}, ", or change fit.loss_options")):
        said = rf"^fit\.loss=broken: fails\. AttributeError: .*test_losses\.py, line \d+: .* loss{remedy}\.$"
        with pytest.raises(OwnCodeError, match=said):
            check_loss(task_named("classify"), parse_fit({"loss": "broken", "loss_options": options}), 3)


@pytest.mark.parametrize("task", [name for name in known_tasks() if name in {task for task, _ in LOSSES}])
def test_every_loss_can_be_tried_and_is_in_the_help(task: str) -> None:
    for of, name in list(LOSSES):
        if of == task:
            check_loss(task_named(task), parse_fit({"loss": name}), 3, weighted=task in ("classify", "multilabel"))
            assert name in settings(LossSettings)["loss"].doc
    assert not list(unused_settings(parse_fit({"loss": "focal"}), task_named(task)))


def test_a_loss_of_a_plugin_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "their_losses.py").write_text(
        "from trainer import loss\n\n\n@loss()\ndef sharp(outputs, targets, *, power=2.0):\n"
        "    return (-outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]) ** power\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = write_folder(tmp_path_factory.mktemp("data"))
    given = ["plugins=[their_losses]", "data=folder", f"data.root={data}", "aug.size=16", "fit.epochs=1", *BARE,
             "fit.batch_size=4", "fit.lr=0.001", "fit.loss=sharp", "fit.device=cpu"]  # fmt: skip
    first, second = (
        rows_of(train(parse_config(compose([*given, *more])), tmp_path / name).folder)[0]
        for name, more in (("a", ["fit.loss_options.power=3"]), ("b", []))
    )
    assert first["train_loss"] != second["train_loss"]
    said = r"^fit\.loss=sharp: cannot take mixed targets\. .*their_losses\.py, line 6: .* aug\.train\.mixup\.$"
    with pytest.raises(OwnCodeError, match=said):
        check_config(parse_config(compose([*given, "+aug=imagenette", "+aug.train.mixup={}"])))
    sys.modules.pop("their_losses", None)


def test_help_names_every_loss_and_its_options_with_their_defaults() -> None:
    docs = {name: settings(LossSettings)[name].doc for name in ("loss", "loss_options")}
    heads = {
        "classify": "Classification",
        "multilabel": "Multi-label classification",
        "regress": "Regression",
        "segment": "Segmentation",
    }
    parts = dict(re.findall(rf"({'|'.join(heads.values())}): ([\w, ]+)\.", docs["loss"]))
    for task, head in heads.items():
        assert parts[head].split(", ") == sorted(name for of, name in LOSSES if of == task)
    for function in LOSSES.values():
        for key, param in signature(function).parameters.items():
            if param.default is not Parameter.empty and key != "smoothing":
                shown = f"{key}={param.default:g}" if param.default is not None else key
                assert re.search(rf"\b{re.escape(shown)}\b", docs["loss_options"]), shown
