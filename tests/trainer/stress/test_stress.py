"""Stress tests: which corruptions there are, their scores by hand, and what the command writes."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from annotated import mask, photo
from photos import draw_photo
from PIL import Image
from torchvision.transforms.v2 import functional as tv

from augment import Range, numpy_op
from augment.cli.compose import compose
from augment.data.targets.spatial import IGNORE
from augment.pipeline.batch import as_pixels
from augment.recipe.op import OPS
from augment.support.errors import UserError
from trainer.callbacks.optimizer_steps import Interrupt
from trainer.loop import ranks
from trainer.loop.checkpoint import BEST
from trainer.run.best_model import load_best_model
from trainer.run.config.schema import parse_config
from trainer.run.train import train
from trainer.stress.callback import Stress
from trainer.stress.command import main
from trainer.stress.corruptions import Corruption, corruptions
from trainer.stress.page import render
from trainer.stress.scores import Score, StressTest, Weakness, stress_test
from trainer.sweeps.compare.command import main as compare
from trainer.tools.evaluate import evaluate, evaluated_split

CHANGING = [name for name, op in OPS.items() if op.kind not in ("crop", "batch", "policy")]
QUICK = ["fit.device=cpu", "fit.threads=1", "callbacks.plots=null", "callbacks.progress_bar=null"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with a red, green or blue tint."""
    folder = tmp_path_factory.mktemp("tinted")
    for split in ("train", "val"):
        for channel, name in enumerate(("red", "green", "<blue>")):
            (folder / split / name).mkdir(parents=True)
            for seed in range(8):
                pixels = draw_photo(32, 32, 100 * channel + seed + 50 * (split == "val")) // 2
                pixels[..., channel] += 40
                Image.fromarray(pixels).save(folder / split / name / f"{seed}.png")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_on(data, tmp_path_factory.mktemp("runs") / "run")


def trained_on(data: Path, folder: Path, *overrides: str) -> Path:
    given = [
        "data=folder",
        f"data.root={data}",
        "aug.size=32",
        "aug.val.center_crop.scale=0.9",
        "fit.batch_size=8",
        "fit.epochs=2",
        *QUICK,
        *overrides,
    ]
    train(parse_config(compose(given)), folder)
    return folder


def stressed(run: Path, *names: str, images: int = 100) -> StressTest:
    trained = load_best_model(run)
    return stress_test(trained, evaluated_split(trained, None), corruptions(names), images)


@pytest.mark.parametrize("name", CHANGING)
def test_every_op_is_a_corruption_of_rising_strength_within_its_range(name: str) -> None:
    aug = parse_config(compose([])).aug
    for corruption in corruptions([name]):
        plans = [corruption.plan(aug, strength, moving_targets=False) for strength in range(len(corruption.values))]
        assert [plan.steps[-1].op.name for plan in plans] == [name] * len(plans)
        rises = np.diff(corruption.values)
        assert (rises >= 0).all() or (rises <= 0).all()


def test_strengths_start_where_the_op_changes_nothing() -> None:
    (rotated,) = corruptions(["rotate"])
    assert rotated.values == (9, 18, 27, 36, 45)
    assert rotated.signed
    lower, higher = corruptions(["brightness"])
    assert lower.values == pytest.approx((0.84, 0.68, 0.52, 0.36, 0.2))
    assert higher.values == pytest.approx((1.3, 1.6, 1.9, 2.2, 2.5))
    (moved,) = corruptions(["translate"])
    step = moved.plan(parse_config(compose([])).aug, 4, moving_targets=True).steps[-1]
    assert step.params["y_range"] == (0, 0), "only the stressed setting changes the image"
    assert step.params["border"] == "constant"
    assert corruptions(["jpeg"])[0].values == (73, 56, 39, 22, 5)
    assert corruptions(["grayscale"]) == [Corruption("grayscale", "grayscale")]


@pytest.mark.usefixtures("clean_registry")
def test_an_op_of_a_plugin_is_tested_too() -> None:
    @numpy_op(rows_range=Range(default=(1, 8), within=(1, 64), whole=True, doc="rows"))
    def roll(image: np.ndarray, rows: float) -> np.ndarray:
        """Roll the image down."""
        return np.roll(image, int(rows), axis=0)

    (rolled,) = [corruption for corruption in corruptions() if corruption.op == "roll"]
    assert rolled.values == (7, 12, 18, 23, 29)


def test_scores_equal_an_evaluation_by_hand(run: Path) -> None:
    """The reference changes the pixels with torchvision and counts correct predictions itself."""
    result = stressed(run, "brightness", "flip", "grayscale", "invert")
    assert result.clean.value == evaluate(run).values["val_accuracy"]
    trained = load_best_model(run)
    split = evaluated_split(trained, None)
    loader = trained.loader(split)
    cropped = np.concatenate([as_pixels(batch.images, loader.plan) for batch in loader])
    pixels = torch.from_numpy(cropped).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (loader.plan.mean, loader.plan.std))

    def accuracy(images: torch.Tensor) -> float:
        with torch.inference_mode():
            outputs = trained.network.eval()((images / 255 - mean) / std)
        return float((outputs.argmax(1) == torch.tensor(split.targets)).double().mean())

    found = {one.corruption.name: [score.value for score in one.scores] for one in result.weaknesses}
    for name in ("brightness lower", "brightness higher"):
        (strengths,) = [one.corruption.values for one in result.weaknesses if one.corruption.name == name]
        expected = [accuracy(tv.adjust_brightness(pixels, strength)) for strength in strengths]
        assert found[name] == pytest.approx(expected, abs=1.5 / len(pixels))  # pixels may round differently
    assert found["flip"] == [accuracy(pixels.flip(3))]
    assert found["grayscale"] == pytest.approx([accuracy(tv.rgb_to_grayscale(pixels, 3))], abs=1.5 / len(pixels))
    assert found["invert"] == [accuracy(255 - pixels)]
    assert min(map(min, found.values())) < result.clean.value, "no corruption has an effect"


def test_an_unchanged_score_has_no_sign() -> None:
    clean = Score(0.1, None, frozenset(), None)
    result = StressTest(Path(), "accuracy", "Accuracy", True, False, 9, clean, (), {}, ())
    assert [result.change(value) for value in (0.1, 0.09999, 0.2, 0.0)] == [
        *["0.0 points"] * 2, "+10.0 points", "-10.0 points",
    ]  # fmt: skip


def test_corruptions_that_do_not_lower_the_score_are_no_weakness() -> None:
    def result(*scores: Sequence[float]) -> StressTest:
        (rotate,) = corruptions(["rotate"])
        weaknesses = [Weakness(rotate, tuple(Score(one, None, wrong, None) for one in values)) for values in scores]
        clean = Score(0.25, None, frozenset(), None)
        files = [Path("missing.png")]
        return StressTest(Path(), "accuracy", "Accuracy", True, False, 9, clean, tuple(weaknesses), {}, files)

    wrong = frozenset({0})
    harmful, better = (0.4, 0.26, 0.2, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25, 0.28)
    some = result(harmful, better, [0.25] * 5)
    assert some.sentences() == ["rotate, angle 36 deg: 25.0% → 10.0%"]
    page = render(some)
    assert page.count("aug.train.rotate.p=0.5") == page.count('class="worse"') == 1
    wrong = frozenset[int]()
    none = result(better, [0.25] * 5)
    assert none.sentences() == []
    page = render(none)
    assert "<li>No corruption makes the score worse on average.</li>" in page
    assert "aug.train" not in page
    assert 'worse"' not in page


def test_a_recipe_covers_the_strengths_that_lower_the_score_in_both_directions() -> None:
    def result(*scores: tuple[Corruption, Sequence[float]]) -> StressTest:
        empty = frozenset[int]()
        weaknesses = [Weakness(one, tuple(Score(v, None, empty, None) for v in values)) for one, values in scores]
        clean = Score(0.9, None, empty, None)
        return StressTest(Path(), "accuracy", "Accuracy", True, False, 9, clean, tuple(weaknesses), {}, ())

    (posterize,), (lower, higher) = corruptions(["posterize"]), corruptions(["contrast"])
    assert posterize.values == (7, 5, 4, 2, 1)
    late, even = (0.9, 0.9, 0.8, 0.5, 0.2), (0.8, 0.7, 0.5, 0.3, 0.2)
    some = result((posterize, late), (lower, even), (higher, even))
    recipes = [some.recipe(weakness) for weakness in some.weaknesses]
    assert recipes[0] == "aug.train.posterize.p=0.5 'aug.train.posterize.bits_range=[2,7]'"
    assert recipes[1] == recipes[2] == "aug.train.contrast.p=0.5 'aug.train.contrast.factor_range=[0.46,2.2]'"
    harmless = result((lower, even), (higher, [0.9] * 5))
    assert "[0.46,0.82]" in harmless.recipe(harmless.weaknesses[0])


def test_the_example_image_is_corrupted(run: Path) -> None:
    result = stressed(run, "grayscale")
    (weakness,) = result.weaknesses
    assert result.clean.example is not None
    assert weakness.scores[0].example is not None
    assert np.ptp(np.asarray(result.clean.example), axis=2).mean() > 16
    assert np.ptp(np.asarray(weakness.scores[0].example), axis=2).max() == 0


def test_an_image_that_is_wrong_once(run: Path) -> None:
    clean, flip = Score(1.0, None, frozenset(), None), Score(0.5, None, frozenset({0}), None)
    weakness = Weakness(Corruption("flip", "flip"), (flip,))
    page = render(StressTest(run, "accuracy", "Accuracy", True, False, 2, clean, (weakness,), {}, [Path("a.png")]))
    assert "wrong 1 time, even at the mildest strength of flip" in page


def test_the_command_states_that_no_corruption_is_harmful(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--ops", "jpeg", "--images", "1"]) == 0
    written = json.loads((run / "stress.json").read_text())
    assert written["mean"] == written["clean"]["value"]
    printed = capsys.readouterr().out
    assert "\nNo corruption makes the score worse on average.\n" in printed
    assert "Worst" not in printed


def test_all_models_get_the_same_corrupted_images(run: Path, data: Path, tmp_path: Path) -> None:
    other = trained_on(data, tmp_path / "other", "seed=5", "fit.batch_size=4", "fit.epochs=1")
    ours, theirs = (stressed(folder, "rotate", "gaussian_noise", "erase", images=5) for folder in (run, other))
    drawn = [
        {(one.corruption.name, strength): score.example.tobytes() for one in result.weaknesses
         for strength, score in enumerate(one.scores) if score.example}
        for result in (ours, theirs)
    ]  # fmt: skip
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == 15
    assert [file.name for file in ours.files] == [file.name for file in theirs.files]
    assert ours.images == 5


def test_the_command_writes_its_result_and_compare_ranks_by_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--ops", "hue,posterize,flip"]) == 0
    printed = capsys.readouterr().out
    written = json.loads((run / "stress.json").read_text())
    assert [len(one["scores"]) for one in sorted(written["corruptions"], key=lambda one: one["name"])] == [1, 5, 5]
    losses = [written["clean"]["value"] - one["mean"] for one in written["corruptions"]]
    assert losses == sorted(losses, reverse=True)
    assert written["mean"] == pytest.approx(np.mean([one["mean"] for one in written["corruptions"]]))
    assert f"Worst: {written['corruptions'][0]['name']}" in printed
    page = (run / "stress.html").read_text()
    assert page.count("<svg") == 3
    assert "aug.train.hue.p=0.5" in page
    assert "<blue>" not in page

    other = shutil.copytree(run, tmp_path / "other")
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("weight_decay: ", "weight_decay: 1"))
    assert (other / "config.yaml").read_text() != config
    (other / "stress.json").write_text(json.dumps(written | {"mean": written["mean"] + 0.1}))
    assert compare([str(run), str(other), "--metric", "stress"]) == 0
    assert "not compared" not in capsys.readouterr().out
    (other / "stress.json").write_text(json.dumps(written | {"tested": "9 images, corruptions 0123abcd"}))
    assert compare([str(run), str(other), "--metric", "stress"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "last stress" in shown
    assert "the validation images differ: stress test=9 images here, 24 images in the baseline." in shown
    (other / "stress.json").write_text(json.dumps(written | {"tested": "24 images, corruptions 0123abcd"}))
    assert compare([str(run), str(other), "--metric", "stress"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "not compared, because the corruptions of the stress tests differ. To compare them, run python -m trainer "
        "stress RUN for both, with the same --ops."
    ) in shown
    (other / "stress.json").unlink()
    assert compare([str(run), str(other), "--metric", "stress"]) == 0
    assert "Left out: no stress test, see python -m trainer stress RUN (run)." in capsys.readouterr().out
    assert "0123abcd" not in shown


def test_images_that_fail_first_are_right_without_corruption(run: Path) -> None:
    result = stressed(run, "hue", "posterize")
    failed = result.first_to_fail(3)
    assert failed
    assert not {position for position, _, _ in failed} & result.clean.wrong
    for position, times, mild in failed:
        assert times == sum(position in score.wrong for one in result.weaknesses for score in one.scores)
        assert all(position in one.scores[0].wrong for one in result.weaknesses if one.corruption.name in mild)
    assert "wrong" in render(result)


def test_masks_follow_the_corruption(tmp_path: Path) -> None:
    """A rotation by 90 degrees with its mask keeps a score that the masks alone would lose."""
    for split, count in (("train", 6), ("val", 4)):
        for number in range(count):
            photo(tmp_path / split / "images" / f"{number}.jpg", 40, 40)
            labels = np.full((40, 40), IGNORE)
            labels[:, :20], labels[:, 20:] = 0, 1
            mask(tmp_path / split / "masks" / f"{number}.png", labels)
    (tmp_path / "names.txt").write_text("left\nright")
    given = ["data=masks", f"data.root={tmp_path}", f"data.classes={tmp_path / 'names.txt'}", "model=unet",
             "aug.size=32", "fit.batch_size=3", "fit.epochs=1", *QUICK]  # fmt: skip
    train(parse_config(compose(given)), tmp_path / "run")
    result = stressed(tmp_path / "run", "flip", "rotate", "jpeg")
    assert {one.corruption.name for one in result.weaknesses} == {"flip", "rotate", "jpeg"}
    assert result.score == "miou"
    assert not result.first_to_fail(3)
    assert render(result)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ops", "jpg"], "jpeg"),
        (["--ops", "mixup"], "--ops mixup"),
        (["--images", "0"], "--images"),
        (["fit.limit_batches=1"], "fit.limit_batches"),
    ],
)
def test_mistakes(run: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.iterdir())
    with pytest.raises(SystemExit) as error:
        main([str(run), *arguments])
    assert error.value.code == 2
    assert says in capsys.readouterr().err
    assert sorted(run.iterdir()) == before


def test_a_run_that_no_corruption_fits_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        file = tmp_path / ("val" if number % 2 else "train") / str(number // 4) / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.full((32, 32, 4), number, np.uint8))
    run = trained_on(tmp_path, tmp_path / "run", "aug=none")
    with pytest.raises(SystemExit) as error:
        main([str(run), "--ops", "jpeg"])
    assert error.value.code == 2
    assert "--ops" in capsys.readouterr().err
    assert not (run / "stress.json").exists()


def test_a_run_without_its_images_is_explained(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main([str(finished_run)])
    assert error.value.code == 2
    assert "data.root" in capsys.readouterr().err


def test_the_callback_tests_the_model_after_the_fit(data: Path, tmp_path: Path) -> None:
    folder = trained_on(data, tmp_path / "run", "callbacks.stress=true", "fit.epochs=1", "callbacks.stress.images=2")
    assert json.loads((folder / "stress.json").read_text())["images"] == 2


def test_the_first_of_several_ranks_tests_the_finished_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks wait, and take part in no exchange."""
    monkeypatch.setattr(ranks, "_joined", SimpleNamespace(size=2))
    sizes = []
    monkeypatch.setattr("trainer.stress.callback.stress", lambda *_, **__: sizes.append(ranks.current().size))
    (tmp_path / BEST).touch()
    interrupt = Interrupt()
    learner = SimpleNamespace(error=None, folder=tmp_path, callbacks=[interrupt])
    Stress().after_fit(cast(Any, learner))
    assert (sizes, ranks.current().size) == ([1], 2)
    interrupt.pressed = True
    Stress().after_fit(cast(Any, learner))
    assert sizes == [1], "a run that was interrupted is tested"
    interrupt.pressed, interrupt.reason = False, "pruned, behind other trials"
    Stress().after_fit(cast(Any, learner))
    assert sizes == [1], "a pruned trial is tested"


def test_a_failed_test_after_the_fit_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stress(*_: object, **__: object) -> None:
        raise UserError("data.root: no images.")

    monkeypatch.setattr("trainer.stress.callback.stress", stress)
    (tmp_path / BEST).touch()
    Stress().after_fit(cast(Any, SimpleNamespace(error=None, folder=tmp_path, callbacks=[])))
    assert capsys.readouterr().err == "warning: the stress test failed: data.root: no images.\n"
