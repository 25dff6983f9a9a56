"""What an evaluation says of its score."""

import json
import math
import shutil

import pytest
import torch

from augment.sources import parse_data
from trainer.evaluate import Score, _worst, evaluate, main
from trainer.predict import predict
from trainer.trained import load_trained


def test_interval_and_classes_by_hand():
    score = Score(0.5, 0.9, 0.0, torch.tensor([[50, 0], [10, 40]]), ("cat", "dog"))
    assert score.pictures == 100
    # Wilson's interval of 90 in 100.
    assert score.interval == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert score.per_class() == {"cat": (50, 50), "dog": (40, 50)}


def test_unequal_classes_by_hand():
    """Recall counts by class, those without pictures aside; nothing was taken for a bird."""
    score = Score(0.5, 0.9, 0.0, torch.tensor([[90, 0, 0], [10, 0, 0], [0, 0, 0]]), ("cat", "dog", "bird"))
    assert score.accuracy == 0.9
    assert score.balanced_accuracy == 0.5
    assert score.precisions() == pytest.approx({"cat": 0.9, "dog": math.nan, "bird": math.nan}, nan_ok=True)


def test_of_many_classes_the_worst_are_shown():
    many = {str(place): (place, 100) for place in reversed(range(61))} | {"none": (0, 0)}
    assert list(_worst(many)) == [str(place) for place in range(60)]
    few = {"cat": (2, 2), "dog": (0, 0), "ant": (1, 2)}
    assert list(_worst(few)) == list(few)


def test_all_right_still_leaves_a_doubt():
    low, high = Score(0.0, 1.0, 0.0, torch.tensor([[20]]), ("cat",)).interval
    assert low == pytest.approx(0.8389, abs=1e-4)
    assert high == pytest.approx(1.0)


@pytest.fixture
def pictures_by_class(photos, tmp_path):
    """Six pictures in three folders named as the classes of `finished_run`."""
    for place, photo in enumerate(photos):
        folder = tmp_path / "mine" / ("red", "green", "blue")[place % 3]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, folder)
    return tmp_path / "mine"


def test_a_folder_is_scored_without_the_data_of_the_run(finished_run, pictures_by_class, capsys):
    assert main([str(finished_run), str(pictures_by_class), "--tta", "flip"]) == 0
    written = json.loads((finished_run / "evaluation-mine.json").read_text())
    assert (written["pictures"], written["tta"]) == (6, "flip")
    assert "tta flip" in capsys.readouterr().out
    assert main([str(finished_run), str(pictures_by_class), "fit.batch_size=2"]) == 0
    earlier = [json.loads(line) for line in (finished_run / "evaluations.jsonl").read_text().splitlines()][-2:]
    assert [(line["tta"], line["overrides"], line["data"]) for line in earlier] == [
        ("flip", [], str(pictures_by_class)),
        ("none", ["fit.batch_size=2"], str(pictures_by_class)),
    ]
    assert earlier[0]["val_loss"] == written["val_loss"]
    assert "per_class" not in earlier[0]

    files = sorted(pictures_by_class.rglob("*.png"))
    shares = [dict(found.classes) for found in predict(finished_run, files, tta="flip")]
    right = [share[file.parent.name] for file, share in zip(files, shares, strict=True)]
    assert written["val_loss"] == pytest.approx(-sum(map(math.log, right)) / 6, rel=1e-4)
    # Six pictures, each in a bin of confidence of its own or with others: their sum of |right - confidence| by hand.
    plain = evaluate(finished_run, pictures_by_class)
    looks = [dict(found.classes) for found in predict(finished_run, files)]
    bins: dict[int, list[float]] = {}
    for file, share in zip(files, looks, strict=True):
        name, confidence = max(share.items(), key=lambda item: item[1])
        bins.setdefault(min(int(confidence * 15), 14), []).append((name == file.parent.name) - confidence)
    by_hand = sum(abs(sum(gaps)) for gaps in bins.values()) / 6
    assert plain.calibration_error == pytest.approx(by_hand, abs=1e-4)
    assert plain.tta == "none"
    assert plain.loss != pytest.approx(written["val_loss"], rel=1e-6)
    assert evaluate(finished_run, pictures_by_class, ["fit.tta=flip"]).loss == pytest.approx(written["val_loss"])


def test_an_unknown_way_to_average(finished_run, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(finished_run), "--tta", "flipp"])
    assert stopped.value.code == 2
    assert "unknown name 'flipp'. Did you mean 'flip'?" in capsys.readouterr().err


def test_another_source_has_settings_of_its_own(finished_run):
    """None of those of the run's source, some of which it does not know; all else is the run's."""
    config = load_trained(finished_run, ["data=sample", "data.dir=elsewhere"]).config
    assert config.data == parse_data({"source": "sample", "dir": "elsewhere"})
    assert config.aug.size == 16
