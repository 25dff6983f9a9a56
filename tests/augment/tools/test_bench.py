"""The benchmark: its command line, and all rows on a few images."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from augment.recipe.op import _OPS, OPS
from augment.tools.bench.baselines import HAS_TORCHVISION
from augment.tools.bench.command import main
from augment.tools.bench.contenders import CONTENDERS, op_contenders


def test_unknown_row_is_an_error_with_a_suggestion(capsys, photos):
    with pytest.raises(SystemExit, match="2"):
        main(["+aug=imagenette", "--photos", str(photos[0].parent), "--rows", "decode,fussed"])
    error = capsys.readouterr().err
    assert "unknown row 'fussed'" in error
    assert "Did you mean 'fused'?" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--seconds", "never"], "--seconds"),
        (["--thread", "2"], "--thread"),
        (["imagenette"], "imagenette"),
        (["--photos", "/nowhere/at/all"], "no such folder"),
        (["+aug.trian.flip.p=1"], "aug.trian"),
        (["+aug=imagenett"], "imagenett"),
        (["+aug=imagenette", "--also", "rand_augmet"], "--also: aug: unknown name 'rand_augmet'"),
        (["--ops", "rotat"], "Did you mean 'rotate'"),
        (["--ops", "one_of"], "one_of"),
        (["--sources"], "--rows: unknown row 'read'"),
        (["--peers", "--model", "resnet-1"], "no model 'resnet-1'"),
        (["--model", "resnet18"], "--model: no model is trained. Allowed: with --peers."),
        (["--ops=flip", "--sources"], "--ops: not used with --sources. Allowed: one of the two."),
        (["--transform", "--peers"], "--peers: not used with --transform. Allowed: one of the two."),
        (["--transform", "--workers", "2"], "--workers: not used with --transform."),
    ],
)
def test_mistakes_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--rows", "read"])
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("no_settling")
@pytest.mark.long
def test_every_row_on_a_few_images(photos, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["+aug=imagenette", "aug.size=32", "--photos", str(photos[0].parent), "--batch-size", "4"]
    short = ["--rounds", "2", "--seconds", "0.02", "--threads", "1", "--workers", "1", "--out", str(out)]
    assert main([*arguments, *short, "--also", "trivial_augment", "--ops", "solarize"]) == 0
    plain = json.loads((out / "bench.json").read_text())
    assert [row["name"] for row in plain["rows"]] == [
        *(row.name for row in CONTENDERS),
        "trivial_augment",
        "op solarize",
    ]
    left_out = {row["name"] for row in plain["rows"] if row["left_out"]}
    assert left_out <= {"cached"} | (set() if HAS_TORCHVISION else {"torchvision"})
    for row in plain["rows"]:
        if row["name"] not in left_out:
            assert len(row["rounds"]) == 2
            assert 0 < row["lowest"] <= row["images_per_second"] <= row["highest"]
            assert row["cpu_cores"] > 0
            assert row["of_decode"] > 0
            assert row["of_crop"] > 0
    assert plain["photos"] == {
        "count": 6,
        "mean_bytes": pytest.approx(np.mean([file.stat().st_size for file in photos])),
        "mean_width": 64,
        "mean_height": 64,
    }
    assert plain["size"] == 32
    assert plain["versions"]["torch"]
    assert "fused" in capsys.readouterr().out


def test_a_new_op_gets_a_row(monkeypatch):
    monkeypatch.setitem(_OPS, "mine", replace(OPS["rotate"], name="mine"))
    names = [row.name for row in op_contenders(["all"])]
    assert "op mine" in names
    assert not {"op resize", "op one_of"} & set(names), "crops, and policies without steps, do nothing by themselves"


@pytest.mark.slow
@pytest.mark.usefixtures("no_settling")
@pytest.mark.filterwarnings("ignore")  # of kornia, where it is installed
def test_a_batch_in_memory(
    photos: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--photos", str(photos[0].parent), "--batch-size", "4", "--out", "here"]
    short += ["--rounds", "1", "--seconds", "0.01", "--threads", "1"]
    assert main(["--transform", "+aug=imagenette", "aug.size=16", *short]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "here" / "bench.json").read_text())["rows"]}
    assert list(rows) == ["transform", "kornia", "torchvision", "torchvision_each"]
    assert rows["transform"]["images_per_second"] > 0
    left_out = {name for name, row in rows.items() if row["left_out"]}
    assert left_out <= {"kornia", "torchvision", "torchvision_each"}
    for name in rows.keys() - left_out - {"transform"}:
        assert rows[name]["of_transform"] > 0
    assert "of transform" in capsys.readouterr().out
    assert main(["--transform", "+aug=imagenette", "aug.size=16", "aug.train.blur={op: gaussian_blur}", *short]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "here" / "bench.json").read_text())["rows"]}
    assert rows["torchvision"]["left_out"] in ("no translation of blur", "torchvision is not installed")
    assert rows["kornia"]["left_out"] in ("no translation of blur", "kornia is not installed")
