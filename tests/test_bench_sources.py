"""The benchmark of sources: the same pictures in every form, and a row each."""

import json
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from augment.bench.formats import SOURCES, load_as
from augment.bench.sources import main
from augment.dataset import Dataset, Split
from augment.own.items import end_readers
from augment.sources import SOURCES as KNOWN
from augment.sources import load_dataset, parse_data
from augment.stored import open_picture


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two classes, three pictures of one size each."""
    monkeypatch.chdir(tmp_path)
    for number, place in enumerate(f"{split}/{name}" for split in ("train", "val") for name in ("cat", "dog")):
        (tmp_path / "data" / place).mkdir(parents=True)
        for i in range(3):
            pixels = np.full((20, 24, 3), 40 * number + 10 * i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / place / f"{i}.png")
    return tmp_path / "data"


def contents(dataset: Dataset) -> list[tuple[bytes, object]]:
    found = []
    for picture, target in zip(dataset.train.files, dataset.train.targets, strict=True):
        with open_picture(picture) as image:
            found.append((image.convert("RGB").tobytes(), target))
    return sorted(found, key=repr)


def test_every_source_is_compared() -> None:
    drawn = {"sample", "sample_multilabel", "imagenette", "imagewoof"}  # folders that the project makes
    assert set(SOURCES) == set(KNOWN) - drawn
    assert SOURCES[0] == "folder"


@pytest.mark.parametrize("source", SOURCES)
def test_all_forms_hold_the_same_pictures(source: str, root: Path, tmp_path: Path) -> None:
    dataset = load_dataset(parse_data({"source": "folder", "root": str(root)}))
    loaded = load_as(source, dataset, tmp_path / "written", 1)
    assert contents(loaded) == contents(dataset)
    assert loaded.classes == ("cat", "dog") or source == "own"


@pytest.mark.parametrize("source", ["filelist", "own"])
def test_pictures_of_a_relative_folder_are_listed(source: str, root: Path) -> None:
    dataset = load_dataset(parse_data({"source": "folder", "root": "data"}))
    assert contents(load_as(source, dataset, Path("written"), 1)) == contents(dataset)


def test_a_table_a_picture_and_a_file(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["data=folder", f"data.root={root}", "aug.size=16", "--rounds=2", "--seconds=0.01", "--batch-size=4"]
    assert main([*given, "--only=lmdb", f"--out={tmp_path / 'out'}"]) == 0
    found = json.loads((tmp_path / "out/sources.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["folder", "lmdb"]
    assert found["rows"][0]["of_folder"] == 1
    assert all(len(row["rounds"]) == 2 for row in found["rows"])
    with Image.open(tmp_path / "out/sources.png") as chart:
        assert chart.width > 500
    assert "of folder" in capsys.readouterr().out


def test_own_code_is_read_by_a_thread_and_by_processes(root: Path, tmp_path: Path) -> None:
    given = ["data=folder", f"data.root={root}", "aug.size=16", "--rounds=1", "--seconds=0.01", "--batch-size=4"]
    assert main([*given, "--only=own", f"--out={tmp_path / 'out'}"]) == 0
    rows = json.loads((tmp_path / "out/sources.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["folder", "own", "own_workers"]
    assert all(row["rounds"] for row in rows)
    assert active_children()
    end_readers()


def test_what_cannot_be_written_so_is_left_out_with_the_reason(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (30, 20)).save(root / "train/cat/0.png")
    given = ["data=folder", f"data.root={root}", "aug.size=16", "--rounds=1", "--seconds=0.01", "--batch-size=4"]
    assert main([*given, "--only=numpy", f"--out={tmp_path / 'out'}"]) == 0
    assert "left out: numpy (the pictures have several sizes)" in " ".join(capsys.readouterr().out.split())


def test_several_labels_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    several = replace(Dataset(("a", "b"), Split((), ()), Split((), ())), task="multilabel")
    monkeypatch.setattr("augment.bench.sources.load_dataset", lambda _: several)
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "several labels" in capsys.readouterr().err
