"""A metric of one's own is a function: it is measured, monitored, shown, compared and resumed like built-in ones."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import on
from red_and_blue import write_folder
from reports import Page
from runs import BARE, read_metrics, rows_of
from torch import Tensor

from augment.cli.compose import compose
from augment.cli.overrides import normalize
from augment.support.errors import UserError
from trainer import metric
from trainer.loop.callback import Callback, CancelFit
from trainer.loop.checkpoint import BEST, BestModel, load
from trainer.loop.learner import Learner
from trainer.run.config.checks import check_config
from trainer.run.config.equality import identity, identity_text
from trainer.run.config.schema import Config, parse_config
from trainer.run.folder.reader import find_runs
from trainer.run.train import train
from trainer.sweeps.search_space import SearchPlan
from trainer.tasks.metric import METRICS
from trainer.tasks.registry import check_metrics, learn_metrics, range_of, smaller_is_better, task_named
from trainer.tasks.trial import check_own_metrics
from trainer.tools import evaluate

MODULE = """
from torch.nn.functional import one_hot

from trainer import metric


@metric("classify", smaller=True, within=(0, 2))
def distance(outputs, targets):
    return (outputs.softmax(1) - one_hot(targets, outputs.shape[1])).square().sum(1)


@metric("classify", whole=True, within=(-1, 1))
def kappa(outputs, targets):
    from torchmetrics.classification import MulticlassCohenKappa

    return MulticlassCohenKappa(outputs.shape[1])
"""


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Take out of the registry what a test put there."""
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Overrides for a run with `MODULE` as a plugin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "distances.py").write_text(MODULE)
    data = [f"data.root={write_folder(tmp_path / 'photos')}", "data=folder", "aug.size=16", "fit.batch_size=8"]
    yield [*data, "fit.device=cpu", "fit.threads=1", "fit.epochs=2", "fit.lr=0.01", "plugins=[distances]"]
    sys.modules.pop("distances", None)


def checked(*overrides: str) -> Config:
    config = parse_config(compose(list(overrides)))
    check_config(config)
    return config


def fit(folder: str, *overrides: str, callbacks: tuple[Callback, ...] = ()) -> Path:
    return train(checked(*overrides), Path(folder), callbacks=callbacks).folder


def test_metrics_of_a_plugin_are_complete(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    monitors = "callbacks.checkpoint.monitor=val_distance", "++callbacks.early_stopping.monitor=val_auroc"
    run = fit("run", *given, *monitors, "fit.metrics=[f1]")
    rows, best = read_metrics(run), load(run / BEST, BestModel)
    assert {"train_distance", "val_distance", "val_kappa", "val_f1", "val_auroc"} < rows[0].keys()
    assert not {"train_kappa", "train_f1", "val_brier"} & rows[0].keys()
    assert best.row == min(rows, key=lambda row: row["val_distance"])
    assert list(best.samples or ()) == ["index", "target", "prediction", "confidence", "target_confidence"]
    out = capsys.readouterr().out
    assert "train acc train distance val loss val acc val f1 val auroc val distance val kappa" in " ".join(out.split())
    assert f"{rows[-1]['val_distance']:.4f}" in out
    page = Page((run / "report.html").read_text()).text
    assert "val distance" in page
    assert "by val_distance" in page

    assert evaluate.main([str(run), "plugins=[distances]"]) == 0
    written = json.loads((run / "evaluation.json").read_text())
    scores = {key: value for key, value in best.row.items() if key.startswith("val_")}
    assert {key: written[key] for key in scores} == pytest.approx(scores, rel=1e-4)
    assert written["val_brier"] == pytest.approx(written["val_distance"], rel=1e-5)
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in ("distance", "kappa", "f1", "auroc", "average_precision", "brier"):
        assert f"val_{name} {written[f'val_{name}']:.4f}" in out

    # A reader that does not import the plugin, such as compare, knows its direction and its range, too.
    for key in [key for key in METRICS if METRICS[key].own]:
        del METRICS[key]
    assert not smaller_is_better("val_distance")
    assert find_runs([run])[0].summary.metrics
    assert smaller_is_better("val_distance")
    learn_metrics({"val_accuracy": [True, 0, 9], "val_x": [True, None, "1"], "val_y": "[]"})  # a stranger's
    assert not any(map(smaller_is_better, ("val_kappa", "val_accuracy", "val_x")))
    assert (range_of("val_distance"), range_of("val_accuracy")) == ((0, 2), (0, 1))


def stop_at(step: int) -> Callback:
    def stop(learner: Learner) -> None:
        if learner.training and learner.progress.batches_done - 1 == step:
            raise CancelFit

    return on("after_batch", stop, order=99)


def test_what_is_measured_changes_nothing_else_and_resumes(given: list[str]) -> None:
    given = [*BARE, *given]
    plain, whole = rows_of(fit("plain", *given[:-1])), rows_of(fit("whole", *given, "fit.metrics=[brier,f1]"))
    assert [{key: row[key] for key in plain[0]} for row in whole] == plain
    configured = [parse_config(compose([*given, *more])) for more in ([], ["fit.metrics=[brier]"])]
    assert len({identity_text(identity(config.resolved)) for config in configured}) == 1
    stopped = fit("stopped", *given, "fit.metrics=[brier,f1]", callbacks=(stop_at(4),))
    more = rows_of(fit("more", *given, "fit.metrics=[brier,f1,auroc]", f"fit.resume={stopped}"))
    assert [{key: row[key] for key in row if key != "val_auroc"} for row in more] == whole
    assert ["val_auroc" in row for row in more] == [False, True]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "fit.metrics=[f2]",
            r"^fit\.metrics: the task classify with 2 classes has no metric 'f2'\. Did you mean .* set plugins=",
        ),
        (
            "fit.metrics=[top5]",
            r"^fit\.metrics: .* 'top5'\. Allowed: accuracy, auroc, .*, distance, f1, .*, kappa.* metric, set plugins=",
        ),
        ("callbacks.checkpoint.monitor=val_mae", r"with 2 classes\. Allowed: auto, val_loss, val_accuracy, val_brier"),
        (
            "callbacks.checkpoint.monitor=val_distanc",
            r"unknown name 'val_distanc'\. Did you mean 'val_distance'\?.* own metric, set plugins=\[MODULE\]\.$",
        ),
    ],
)
def test_unknown_metrics(override: str, message: str, given: list[str]) -> None:
    with pytest.raises(UserError, match=message):
        checked(*given, override)


def test_a_search_measures_what_its_jobs_do(given: list[str]) -> None:
    def plan(*more: str) -> SearchPlan:
        fixed, sweeper = normalize([*given, *more]), {"kind": "optuna", "metrics": ["val_f1"], "n_trials": 1}
        return SearchPlan.of(sweeper, fixed, ["fit.lr=interval(0.1,1)"], Path("search"), check=False)

    with pytest.raises(UserError, match=r"val_f1 is not measured\. Add fit\.metrics=\[f1\]"):
        plan()
    assert plan("fit.metrics=[f1]").metric == "val_f1"


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda o, t: o.sum(1), {"task": "clasify"}, r"own: unknown task 'clasify'\. Did you mean 'classify'\?"),
        (lambda o, t: (o.argmax(1) == t).float().mean(), {}, r"Tensor of shape \(\) for 4 samples.*With whole=True"),
        (lambda o, t: 0.5, {}, r"metric own returns float of shape \(\) for 4 samples"),
        (lambda o, t: o.argmax(1) == t, {"whole": True}, "Return a number or a torchmetrics metric"),
        (lambda o, t: None, {"whole": True}, "Return a number or a torchmetrics metric"),
        (
            lambda o, t: o.argmx(1),
            {"whole": True},
            r"^metric own: AttributeError: .* \(.*, line .* Correct the metric\.$",
        ),
    ],
)
def test_mistakes_in_a_declaration(
    function: Callable[[Tensor, Tensor], Any], options: dict[str, Any], message: str
) -> None:
    metric(name="own", **options)(function)
    task = task_named("classify")

    def check() -> None:
        check_metrics(task, "abc", ())
        check_own_metrics(task, task.measured("abc"), 3)

    with pytest.raises(UserError, match=message):
        check()


def test_own_metrics_are_tried_before_training(given: list[str], tmp_path: Path) -> None:
    def changed(to: str) -> None:
        sys.modules.pop("distances", None)
        METRICS.pop(("classify", "distance"), None)
        (tmp_path / "distances.py").write_text(MODULE.replace(".sum(1)", to))

    changed(".mean()")
    with pytest.raises(UserError, match=r"^metric distance returns Tensor of shape \(\)"):
        checked(*given)
    changed(".sum(1) / int(targets.any())")  # it needs other samples
    checked(*given)


def test_a_derived_task_has_the_metrics_of_the_other() -> None:
    class Derived(type(task_named("classify"))):  # type: ignore[misc]
        name = "derived"

    assert Derived().metrics == task_named("classify").metrics
    metric("derived", name="accuracy", whole=True)(lambda outputs, targets: 0.5)
    for task, whole in ((Derived(), True), (task_named("classify"), False)):
        assert [m.whole for m in task.metrics if m.name == "accuracy"] == [whole]
