"""The benchmark of sources: the same images in every format, with a row each."""

import json
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from augment.data.convert.writers import FORMATS
from augment.data.dataset import Dataset, Split
from augment.data.images import open_image
from augment.data.own.items import end_readers
from augment.data.sources import SOURCES as KNOWN
from augment.data.sources import load_dataset, parse_data
from augment.tools.bench.command import main
from augment.tools.bench.formats import SOURCES, load_as


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two classes, three images of one size each."""
    monkeypatch.chdir(tmp_path)
    for number, folder in enumerate(f"{split}/{name}" for split in ("train", "val") for name in ("cat", "dog")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for i in range(3):
            pixels = np.full((20, 24, 3), 40 * number + 10 * i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / folder / f"{i}.png")
    return tmp_path / "data"


def contents(dataset: Dataset) -> list[tuple[bytes, object]]:
    found = []
    for ref, target in zip(dataset.train.files, dataset.train.targets, strict=True):
        with open_image(ref) as image:
            found.append((image.convert("RGB").tobytes(), target))
    return sorted(found, key=repr)


def test_sources_that_can_be_written_are_compared() -> None:
    assert set(FORMATS) < set(SOURCES) < set(KNOWN)
    assert SOURCES[0] == "folder"


@pytest.mark.parametrize("source", SOURCES)
def test_all_formats_hold_the_same_images(source: str, root: Path, tmp_path: Path) -> None:
    dataset = load_dataset(parse_data({"source": "folder", "root": str(root)}))
    loaded = load_as(source, dataset, tmp_path / "written", 1)
    assert contents(loaded) == contents(dataset)
    assert loaded.classes == ("cat", "dog") or source == "own"


@pytest.mark.parametrize("source", ["filelist", "own"])
def test_images_of_a_relative_folder_are_listed(source: str, root: Path) -> None:
    dataset = load_dataset(parse_data({"source": "folder", "root": "data"}))
    assert contents(load_as(source, dataset, Path("written"), 1)) == contents(dataset)


@pytest.mark.usefixtures("no_settling")
def test_sources_are_reported_in_a_table_a_chart_and_a_file(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["data=folder", f"data.root={root}", "aug.size=16", "--rounds=2", "--seconds=0.01", "--batch-size=4"]
    assert main(["--sources", *given, "--rows=lmdb", f"--out={tmp_path / 'out'}"]) == 0
    found = json.loads((tmp_path / "out/sources.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["folder", "lmdb"]
    assert found["rows"][0]["of_folder"] == 1
    assert all(len(row["rounds"]) == 2 for row in found["rows"])
    with Image.open(tmp_path / "out/sources.png") as chart:
        assert chart.width > 500
    assert "of folder" in capsys.readouterr().out


@pytest.mark.usefixtures("no_settling")
@pytest.mark.long
def test_own_code_is_measured_with_a_thread_and_with_processes(root: Path, tmp_path: Path) -> None:
    given = ["data=folder", f"data.root={root}", "aug.size=16", "--rounds=1", "--seconds=0.01", "--batch-size=4"]
    assert main(["--sources", *given, "--rows=own", f"--out={tmp_path / 'out'}"]) == 0
    rows = json.loads((tmp_path / "out/sources.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["folder", "own", "own_workers"]
    assert all(row["rounds"] for row in rows)
    assert active_children()
    end_readers()


@pytest.mark.usefixtures("no_settling")
def test_formats_that_cannot_hold_the_images_are_left_out_with_a_reason(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (30, 20)).save(root / "train/cat/0.png")
    given = ["data=folder", f"data.root={root}", "aug.size=16", "--rounds=1", "--seconds=0.01", "--batch-size=4"]
    assert main(["--sources", *given, "--rows=numpy", f"--out={tmp_path / 'out'}"]) == 0
    assert "left out: numpy (the images have several sizes)" in " ".join(capsys.readouterr().out.split())


def test_several_labels_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    several = replace(Dataset(("a", "b"), Split((), ()), Split((), ())), task="multilabel")
    monkeypatch.setattr("augment.tools.bench.sources.load_dataset", lambda _: several)
    with pytest.raises(SystemExit) as caught:
        main(["--sources"])
    assert caught.value.code == 2
    assert "several labels" in capsys.readouterr().err
