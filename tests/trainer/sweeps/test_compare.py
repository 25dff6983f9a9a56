"""`python -m trainer compare`: groups, names, verdicts and what is left out, from folders written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from sweeps import write_run

from trainer.run.folder.reader import find_runs
from trainer.sweeps.compare.command import main
from trainer.sweeps.run_groups import name_groups, same_configuration

LOW, HIGH = (0.900, 0.905, 0.910), (0.920, 0.926, 0.931)


def write_seeds(
    folder: Path, scores: tuple[float, ...], settings: dict[str, Any] | None = None, **summary: Any
) -> None:
    for seed, score in enumerate(scores):
        write_run(folder / str(seed), score, {"seed": seed, **(settings or {})}, **summary)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the tool prints, in the current folder `tmp_path`: its exit code and its lines."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, list[str]]:
        code = main(arguments)
        return code, [" ".join(line.strip("│┃ ").split()) for line in capsys.readouterr().out.splitlines()]

    return run


def rejected(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def names(folder: Path) -> list[str]:
    return name_groups(same_configuration(find_runs([folder])))


def test_settings_are_compared_across_sweeps(said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW)
    write_seeds(tmp_path / "b", HIGH, {"fit.lr": 0.2})
    write_run(tmp_path / "c", 0.904, {"seed": 3, "run.name": "mine", "callbacks.wandb": {"project": "x"}})
    code, lines = said(".", "--out", "told.md", "--out", "told.json")
    assert code == 0
    rows = [line for line in lines if "│" in line]
    assert [row.split(" │ ")[:3] for row in rows] == [["fit.lr=0.2", "3", "0.9257"], ["fit.lr=0.1", "4", "0.9048"]]
    assert [row.split(" │ ")[5:] for row in rows] == [["+2.1 points", ".007"], ["baseline"]]
    assert "Compared with fit.lr=0.1, the first configuration in the order of the runs:" in lines
    verdict = "fit.lr=0.2: better by 2.1 points (95% interval 1.0 to 3.2, p = .007, 3 and 4 seeds)."
    assert verdict in lines
    assert f"- {verdict}" in (tmp_path / "told.md").read_text().splitlines()
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["baseline"] == "fit.lr=0.1"
    assert [group["n"] for group in told["groups"]] == [3, 4]
    assert told["groups"][0]["difference"]["mean"] == pytest.approx(0.0209, abs=1e-4)


@pytest.mark.parametrize("baseline", ["fit.lr=0.2", "mine", "b"])
def test_a_baseline_by_name_or_run(baseline: str, said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW)
    write_run(tmp_path / "b", 0.9, {"fit.lr": 0.2, "run.name": "mine"})
    assert "Compared with fit.lr=0.2, the baseline:" in said(".", "--baseline", baseline)[1]


def test_another_baseline_or_metric_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW)
    write_seeds(tmp_path / "b", HIGH, {"fit.lr": 0.2})
    where = str(tmp_path)
    assert "Did you mean 'fit.lr=0.2'?" in rejected(capsys, where, "--baseline", "fit.lr=0.3")
    assert "matches 0 configurations" in rejected(capsys, where, "--baseline", "model.kind=cnn")
    assert "Did you mean 'val_accuracy'?" in rejected(capsys, where, "--metric", "val_acuracy")
    assert "a name that ends in .md or .json" in rejected(capsys, where, "--out", "x.txt")
    (tmp_path / "empty").mkdir()
    assert "no runs" in rejected(capsys, str(tmp_path / "empty"))


def test_runs_that_do_not_count_are_named(said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW)
    for name, summary in (
        ("f", {"status": "failed"}),
        ("i", {"status": "interrupted"}),
        ("p", {"stopped": "pruned"}),
        ("s", {"stopped": "no better val_loss"}),
        ("n", {"last": {"epoch": 1, "val_accuracy": None}}),
    ):
        write_run(tmp_path / name, 0.1, {"seed": 10}, **summary)
    _, lines = said(".")
    assert [line.split(" │ ")[1:3] for line in lines if "│" in line] == [["3", "0.9050"]]
    for reason in (
        "failed (f)",
        "interrupted (i)",
        "pruned by the search (p)",
        "no val_accuracy in the last epoch (n)",
        "stopped early, unlike other runs of the same configuration (s)",
    ):
        assert reason in lines[-1]
    code, lines = said("f")
    assert (code, lines) == (1, ["Nothing to compare in 1 run.", "Left out: failed (f)."])


def test_a_name_that_is_cut_off_has_the_settings_that_distinguish_it(tmp_path: Path) -> None:
    common = {f"aug.train.{op}.p": 0.3 for op in ("flip", "hue", "gamma", "invert", "scale", "shear", "warp")}
    for lr in (1, 2):
        for seed in (0, 1):
            write_run(tmp_path / f"{lr}{seed}", 0.5, {**common, "fit.lr": lr, "seed": seed})
    write_run(tmp_path / "z", 0.5, {})
    one, two, other = names(tmp_path)
    assert one.startswith("fit.lr=1 ")
    assert two.startswith("fit.lr=2 ")
    assert other


def test_without_a_stress_test_the_remedy_is_its_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path / "n", 0.1, {})
    text = rejected(capsys, str(tmp_path), "--metric", "stress")
    assert text.endswith("--metric stress: no run has this score. Run python -m trainer stress RUN.\n")


def test_runs_that_all_stopped_early_count(said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW, stopped="no better val_loss")
    _, lines = said(".")
    assert lines[-1].startswith("All runs of ")
    assert " stopped early, " in lines[-1]
    assert any("│ 3 │ 0.9050" in line for line in lines)


def test_seeds_of_one_fold_are_not_compared_with_other_folds(said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW, {"data.folds": 5, "data.fold": 0})
    write_seeds(tmp_path / "b", HIGH, {"data.folds": 5, "data.fold": 1, "fit.lr": 0.2})
    _, lines = said(".")
    differ = "not compared, because the validation images differ: data.fold=1 here, 0 in the baseline."
    assert f"fit.lr=0.2: {differ}" in lines


def test_seeds_of_one_fold_are_not_compared_with_several_folds(said: Any, tmp_path: Path) -> None:
    for fold, score in enumerate(HIGH):
        write_run(tmp_path / "a" / str(fold), score, {"data.folds": 3, "data.fold": fold, "seed": 0})
    write_seeds(tmp_path / "b", LOW, {"data.folds": 3, "data.fold": 0, "fit.lr": 0.2})
    write_run(tmp_path / "c", 0.5, {"data.folds": 3, "data.fold": 0, "fit.lr": 0.3})
    _, lines = said(".")
    differ = "not compared, because the validation images differ: data.fold=0 here, 0,1,2 in the baseline."
    assert f"fit.lr=0.2: {differ}" in lines
    assert "fit.lr=0.3: one fold, which cannot rule out chance. Also run data.fold=1,2." in lines


def test_if_val_is_cut_from_train_both_must_be_the_same(said: Any, tmp_path: Path) -> None:
    for name, settings in (("a", {"data.train": "a.csv"}), ("b", {"data.train": "b.csv", "model.kind": "timm"})):
        write_seeds(tmp_path / name, LOW, {"data.val_fraction": 0.2, "data.val": f"unused {name}", **settings})
    _, lines = said(".")
    differ = "not compared, because the validation images differ: data.train=b.csv here, a.csv in the baseline."
    assert any(line.endswith(differ) for line in lines)


@pytest.mark.parametrize(
    ("key", "given", "was"), [("data.root", "/others", "/photos"), ("fit.limit_batches", 3, "null")]
)
def test_what_was_validated_on_other_images_is_not_compared(
    key: str, given: object, was: str, said: Any, tmp_path: Path
) -> None:
    write_seeds(tmp_path / "a", LOW)
    write_seeds(tmp_path / "b", LOW, {"model.kind": "timm", key: given})
    reason = f"the validation images differ: {key}={given} here, {was} in the baseline"
    assert any(line.endswith(f"not compared, because {reason}.") for line in said(".")[1])
    # Other images of the train split are no obstacle.
    for file in (tmp_path / "b").glob("*/config.yaml"):
        config = OmegaConf.load(file)
        OmegaConf.update(config, key, None if was == "null" else was)
        OmegaConf.update(config, "data.fraction", 0.1)
        OmegaConf.save(config, file)
    assert not any("not compared" in line for line in said(".")[1])


def test_runs_on_other_numbers_of_images_are_no_replicates(said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW + HIGH)
    for seed in range(6):
        (tmp_path / "a" / str(seed) / "run.json").write_text(json.dumps({"images": [9, 9, 100 if seed < 3 else 120]}))
    differ = "a/3: not compared, because the validation images differ: number of images=120 here, 100 in the baseline."
    assert differ in said(".")[1]


def test_a_seed_twice_counts_once(said: Any, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", LOW)
    write_run(tmp_path / "b", 0.92, {"seed": 0})
    _, lines = said(".")
    assert any("│ 3 │ 0.9083" in line for line in lines)
    assert lines[-1] == "Runs with the same seed count as one, with their mean score."


def test_losses_of_one_kind_are_compared_while_other_jobs_wait(said: Any, tmp_path: Path) -> None:
    for seed, loss in enumerate((0.5, 0.6)):
        last = {"epoch": 1, "val_loss": loss, "val_mae": 10 * loss}
        write_run(tmp_path / str(seed), None, {"seed": seed, "fit.loss": "mse"}, last=last, best=last)
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "job.json").write_text('{"order": 3, "overrides": ["seed=2"]}')
    _, lines = said(".")
    assert lines[0] == "last val_loss"
    assert lines[-1] == "Left out: not run yet (waiting)."
    write_run(tmp_path / "2", None, {"seed": 2, "fit.loss": "mae"}, last=last, best=last)
    assert any("the losses differ: fit.loss=mae" in x for x in said(".")[1])
    assert not any("the losses differ" in x for x in said(".", "--metric", "val_mae")[1])
    write_run(tmp_path / "3", None, {"seed": 2, "fit.loss": "mse", "data.fraction": 0.1}, last=last, best=last)
    given = "fit.standardize=by data.fraction=0.1 here, by data.fraction=1.0 in the baseline. Choose another score"
    assert any(f"the losses differ: {given}" in x for x in said(".")[1])


def test_names_say_what_differs_and_no_more(tmp_path: Path) -> None:
    for name, settings in (
        ("a", {}),
        ("b", {"aug.train.rotate.p": 0.2}),
        ("c", {"aug.train.rotate": "~"}),
        ("d", {"aug.train.rotate.p": 0.2, "callbacks.ema": {"decay": 0.9}}),
        ("e", {"callbacks.ema": True}),  # no section, as the other one is
        ("f", {"callbacks.ema": {}, "callbacks.report": "~"}),
    ):
        write_run(tmp_path / name, 0.5, settings)
    assert names(tmp_path) == [
        "aug.train.rotate.p=0.1 +callbacks.report ~callbacks.ema",
        "aug.train.rotate.p=0.2 +callbacks.report ~callbacks.ema",
        "~aug.train.rotate +callbacks.report ~callbacks.ema",
        "aug.train.rotate.p=0.2 +callbacks.report +callbacks.ema",
        "aug.train.rotate.p=0.1 +callbacks.report callbacks.ema=true",
        "aug.train.rotate.p=0.1 ~callbacks.report +callbacks.ema",
    ]


def test_names_are_overrides_where_those_are_fewer(tmp_path: Path) -> None:
    for name in ("mine", "yours"):
        recipe = {f"aug.train.{name}_{i}": {"p": 0.5} for i in range(9)}
        folder = write_run(tmp_path / name, 0.5, recipe)
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "overrides.yaml").write_text(f"[+aug={name}, ++seed=3, ++fit.epochs=2]")
    assert names(tmp_path) == ["aug=mine", "aug=yours"]


def test_names_leave_out_what_follows_from_the_source_or_the_model(tmp_path: Path) -> None:
    folder = {"data.source": "folder", "data.val_dir": None}
    write_run(tmp_path / "a", 0.5, {"data.source": "sample", "data.dir": "outputs/data", "data.root": "~"})
    write_run(tmp_path / "b", 0.5, {**folder, "data.root": "/cats"})
    write_run(tmp_path / "c", 0.5, {**folder, "data.root": "/dogs", "model.kind": "xresnet", "model.depth": 18})
    assert names(tmp_path) == [
        "data.source=sample model.kind=cnn",
        "data.source=folder model.kind=cnn data.root=/cats",
        "data.source=folder model.kind=xresnet data.root=/dogs",
    ]
    write_run(tmp_path / "d", 0.5, {**folder, "data.root": "/dogs", "model.kind": "xresnet", "model.depth": 34})
    assert names(tmp_path)[2:] == [
        "data.source=folder model.kind=xresnet data.root=/dogs model.depth=18",
        "data.source=folder model.kind=xresnet data.root=/dogs model.depth=34",
    ]


def test_names_of_a_stranger_are_shown_as_they_are(said: Any, tmp_path: Path) -> None:
    evil = "[bold]\x1b[2J|<script>](x)\ud800"
    write_seeds(tmp_path / "a", LOW)
    folder = write_run(tmp_path / "b", 0.5, {"model.kind": "x"}, name=evil)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("kind: x", r'kind: "[bold]\e[2J|<script>](x)"'))
    _, lines = said(".", "--out", "told.md")
    assert any("model.kind=[bold]?[2J|<script>](x): one seed" in line for line in lines)
    told = (tmp_path / "told.md").read_text()
    assert r"model.kind=[bold]?[2J\|&lt;script>]\(x)" in told
    assert "\x1b" not in told


def test_the_baseline_has_replicates_if_any_configuration_has(said: Any, tmp_path: Path) -> None:
    """As where a search gave more seeds to its survivors alone; the others share a line."""
    for number in range(8):
        write_run(tmp_path / "a" / str(number), 0.5 + number / 100, {"fit.lr": number})
    write_seeds(tmp_path / "b", HIGH, {"fit.lr": 7})
    write_seeds(tmp_path / "c", LOW, {"fit.lr": 8})
    _, lines = said(".")
    assert "Compared with fit.lr=7, the first configuration with several seeds in the order of the runs:" in lines
    assert lines[-2] == (
        "fit.lr=6; fit.lr=5; fit.lr=4; fit.lr=3; fit.lr=2 and 2 more: one seed, which cannot rule out chance. "
        "Also run seed=1,2."
    )
