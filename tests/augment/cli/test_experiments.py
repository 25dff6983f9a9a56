"""Experiments: what they choose and set, who wins over them, and the rows of the article of 2019."""

import pytest

from augment.cli.compose import compose, compose_recipe
from augment.recipe.plan import build_plan


@pytest.mark.parametrize(
    "token", ["experiment=imagenette_5", "+experiment=imagenette_5", "experiment=imagenette_5.yaml"]
)
def test_an_experiment_chooses_files_and_sets_keys(token: str) -> None:
    config = compose([token])
    assert set(config) == {"data", "model", "aug", "fit", "callbacks"}
    assert config["data"] == {"source": "imagenette", "variant": 320}
    assert config["model"] == compose(["model=xresnet34"])["model"]
    assert config["aug"] == compose(["aug=leaderboard"])["aug"]
    assert config["fit"]["epochs"] == 5


@pytest.mark.parametrize(
    ("name", "trained", "validated"),
    [("imagenette_5", [], 128), ("imagenette_fast", [], 128), ("imagenette_20", [128], 160),
     ("imagenette_noisy_5", [], 128), ("imagenette_noisy_20", [128], 128), ("imagenette_noisy_80", [128], 128),
     ("imagenette_noisy_200", [128], 128),
     ("imagenette_80", [128], 160), ("imagewoof_20", [128], 160)],
)  # fmt: skip
def test_experiments_have_the_sizes_that_the_readme_has(name: str, trained: list[int], validated: int) -> None:
    config = compose([f"+experiment={name}"])
    assert [stage["size"] for stage in config["fit"].get("stages", {}).values()] == trained
    assert config["aug"]["size"] == validated


@pytest.mark.parametrize("first", [True, False])
def test_the_command_line_wins_over_the_experiment(first: bool) -> None:
    given = ["+aug=strong", "data=folder", "data.root=d", "model=cnn", "fit.lr=7", "aug.size=64", "aug.train.flip.p=1"]
    config = compose([*given, "+experiment=imagenette_5"] if first else ["+experiment=imagenette_5", *given])
    strong = compose(["+aug=strong", "aug.size=64", "aug.train.flip.p=1"])["aug"]
    assert config["aug"] == strong
    assert list(config["aug"]["train"]) == list(strong["train"])
    assert (config["data"], config["model"]) == ({"source": "folder", "root": "d"}, {"kind": "cnn"})
    assert (config["fit"]["lr"], config["fit"]["epochs"]) == (7, 5)


def test_keys_that_an_experiment_sets_win_over_files_of_the_command_line() -> None:
    assert compose(["fit=article", "+experiment=imagewoof_5"])["fit"]["epochs"] == 5
    assert compose(["fit=article", "+experiment=imagewoof_5", "fit.epochs=8"])["fit"]["epochs"] == 8


# --- the article of 2019 ---

ROWS = {
    # Row of the article's table: how many fixed warps, and whether it turns the image and mirrors it vertically.
    "_baseline": (0, False, False),
    "_warps_2": (2, False, False),
    "_warps_11": (11, False, False),
    "_rotate": (7, True, False),
    "": (7, True, True),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_steps_of_a_row_of_the_article(row: str) -> None:
    warps, rotates, flips = ROWS[row]
    aug = compose_recipe([f"aug=imagenette_2019{row}"]).aug
    expected = {
        **({"vertical_flip": 0.1} if flips else {}),
        **{f"warp_{number}": 0.025 for number in range(1, warps + 1)},
        **({"rotate": 0.075} if rotates else {}),
        "mirror": 0.5,
    }
    train, val = build_plan(aug, "train"), build_plan(aug, "val")
    assert {step.key: step.p for step in train.steps} == expected
    assert [step.key for step in train.steps] == list(expected)
    assert len(train.stages) == 1
    assert all(step.drawn_once for step in train.steps if step.op.name == "warp")
    assert train.stages[0].border == (("constant", 0) if warps else ("reflect_101", 0))
    assert (train.crop.params["area_range"], train.crop.params["aspect_range"]) == ((0.08, 1.0), (0.75, 1.333))
    assert (val.crop.op.name, val.crop.params["side"], val.steps) == ("resize", "both", ())
    assert train.mean == val.mean == (0.4879, 0.4740, 0.4307)
    assert train.std == val.std == (0.2814, 0.2831, 0.3079)


def test_the_random_warp_is_applied_as_often_as_any_of_the_fixed_ones() -> None:
    warp, mirror = build_plan(compose_recipe(["aug=imagenette_2019_random_warp"]).aug, "train").steps
    assert (warp.op.name, warp.drawn_once, warp.params["border"]) == ("warp", False, "reflect_101")
    assert warp.p == pytest.approx(1 - (1 - 0.025) ** 7, abs=5e-4)
    assert (mirror.key, mirror.p) == ("mirror", 0.5)
