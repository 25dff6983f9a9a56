"""The test split: for every source, drawn before all other splits, and never loaded for training."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import annotated
import numpy as np
import pytest
from files_of_sources import ALL, drawn, put
from PIL import Image

from augment.data.dataset import DATA_DIR, Dataset
from augment.data.sources import LOADED, Source, load_dataset, parse_data
from augment.support.errors import UserError
from trainer.tools.evaluate import evaluated_split


def load(source: Source) -> Dataset:
    LOADED.clear()
    return load_dataset(source)


def names(dataset: Dataset, split: str) -> set[str]:
    return set(map(str, getattr(dataset, split).files))


def given(source: str, **counts: int) -> dict[str, Any]:
    """Write splits with some numbers of images, and return their settings."""
    settings: dict[str, Any] = {"source": source}
    for name, count in counts.items():
        settings |= put(source, name, drawn(count))
    return settings


@pytest.mark.parametrize("source", ALL)
def test_each_source_reads_test_data_only_if_asked(source: str, own_folder: Path) -> None:
    found = parse_data(given(source, train=9, val=6, test=3))
    assert [len(getattr(load(found), name)) for name in ("train", "val")] == [9, 6]
    tested = load(found.with_test())
    assert (len(tested.train), len(tested.val)) == (9, 3)
    assert tested.classes == load(found).classes
    assert "test" in str(tested.val.files[0])


@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize("source", [*(one for one in ALL if one != "numpy"), "sample"])
def test_each_source_can_hold_out_a_share_of_its_training_images(source: str, own_folder: Path) -> None:
    settings = {"source": source} if source == "sample" else given(source, train=30, val=6)
    found = parse_data(settings | {"test_fraction": 0.2})
    trained, tested = load(found), load(found.with_test())
    assert len(tested.val) == pytest.approx(0.2 * (len(trained.train) + len(tested.val)), abs=5)  # rounded by class
    assert not names(trained, "train") & names(tested, "val")
    assert names(trained, "val") == names(load(parse_data(settings)), "val")


@pytest.fixture
def images(own_folder: Path) -> dict[str, Any]:
    put("folder", "train", drawn(60))
    return {"source": "folder", "root": "set/train", "test_fraction": 0.2}


def test_the_test_images_do_not_depend_on_other_splits(images: dict[str, Any]) -> None:
    cuts: list[dict[str, Any]] = [{"val_fraction": share} for share in (0.2, 0.5)]
    cuts += [{"folds": 3, "fold": fold} for fold in range(3)]
    tests = set()
    for cut in cuts:
        found = parse_data(images | cut)
        trained, tested = load(found), load(found.with_test())
        test = names(tested, "val")
        assert len(test) == 12
        assert not test & (names(trained, "train") | names(trained, "val"))
        assert len(trained.train) + len(trained.val) == 48
        tests.add(frozenset(test))
    assert len(tests) == 1
    other = parse_data(images | cuts[0] | {"split_seed": 1})
    assert names(load(other.with_test()), "val") not in tests


def test_all_fractions_refer_to_all_training_images(images: dict[str, Any]) -> None:
    found = load(parse_data(images | {"val_fraction": 0.4}))
    assert (len(found.train), len(found.val)) == (24, 24)


def test_a_test_split_leaves_the_draw_of_the_validation_split(images: dict[str, Any]) -> None:
    """A run without the setting keeps its split."""
    before = load(parse_data({**images, "test_fraction": None, "val_fraction": 0.2}))
    assert len(before.val) == 12
    assert names(before, "val") != names(load(parse_data(images | {"val_fraction": 0.5}).with_test()), "val")


@pytest.mark.parametrize("others", [{}, {"val_fraction": 0.25}, {"folds": 2, "fold": 1}])
def test_groups_stay_in_one_split(others: dict[str, Any], images: dict[str, Any]) -> None:
    put("folder", "val", drawn(6))
    root = "set/train" if others else "set"
    found = parse_data(images | {"root": root, "group": r"/(\d)\d*\.jpg"} | others)
    trained, tested = load(found), load(found.with_test())
    parts = [{Path(name).name[0] for name in names(trained, "train")}, {Path(n).name[0] for n in names(tested, "val")}]
    parts += [{Path(name).name[0] for name in names(trained, "val")}] if others else []
    assert sum(map(len, parts)) == len(set().union(*parts)) == 10


@pytest.mark.parametrize("source", ["folder", "numpy"])
def test_copies_stay_in_one_split(source: str, own_folder: Path) -> None:
    image = drawn(1)[0][0]
    settings = put(source, "train", [(image, number % 2, "") for number in range(20)])
    settings |= put(source, "val", [(image, number % 2, "") for number in range(4)])
    with pytest.raises(UserError, match=r"test_fraction=0\.5 leaves a split empty"):
        load(parse_data({"source": source, "test_fraction": 0.5, **settings}))


def test_many_different_numbers_may_not_be_classes(own_folder: Path) -> None:
    Path("list.csv").write_text("path,label\n" + "".join(f"{number}.png,{number}\n" for number in range(30)))
    for number in range(30):
        Image.new("RGB", (8, 8)).save(f"{number}.png")
    with pytest.raises(UserError, match=r"To predict numbers, set data\.task=regress\.$"):
        load(parse_data({"source": "filelist", "train": "list.csv", "val_fraction": 0.2}))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"test_fraction": 0.5, "val_fraction": 0.5}, "leave no training images. Use fractions with a sum below 1"),
        ({"test_fraction": 0.5, "test_dir": "t"}, "Set only one of them"),
        ({"test_fraction": 0.95}, "test_fraction"),
    ],
)
def test_contradictions_are_rejected(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        parse_data({"source": "folder", "root": "set", **settings})


@pytest.mark.usefixtures("sample_drawn")
@pytest.mark.parametrize("source", ["folder", "filelist", "sample", "imagenette"])
def test_a_missing_test_split_is_an_error(source: str, own_folder: Path) -> None:
    settings = {"source": source} if source in ("sample", "imagenette") else given(source, train=6, val=3)
    with pytest.raises(UserError, match="test") as caught:
        load(parse_data(settings).with_test())
    remedy = "data.test_dir" if source == "folder" else "data.test_fraction=0.1"
    assert remedy in str(caught.value)
    assert "data.train_dir" not in str(caught.value)


def test_an_empty_test_split_is_an_error(own_folder: Path) -> None:
    settings = given("folder", train=6, val=3)
    Path("set/empty/class 0").mkdir(parents=True)
    with pytest.raises(UserError, match="set/empty"):
        load(parse_data(settings | {"test_dir": "empty"}).with_test())
    settings = given("filelist", train=6, val=3)
    Path("empty.txt").touch()
    with pytest.raises(UserError, match=r"empty\.txt"):
        load(parse_data(settings | {"test": "empty.txt"}).with_test())


def test_messages_name_the_test_split(own_folder: Path) -> None:
    settings = given("folder", train=9, val=3, test=3)
    Path("set/test/class 1/1.jpg").write_bytes(Path("set/train/class 1/1.jpg").read_bytes())
    Path("set/test/class 2/2.jpg").unlink()
    Path("set/test/class 2/20.jpg").write_bytes(drawn(20)[19][0])
    notices = " ".join(load(parse_data(settings).with_test()).notices)
    assert "2 of 3 test images are copies of train images" in notices
    Path("set/test/class 0/0.jpg").write_bytes(b"broken")
    with pytest.raises(UserError, match="1 of 3 test images cannot be used"):
        load(parse_data(settings).with_test())


# --- targets in the image ---


def write_masks(root: Path) -> dict[str, Any]:
    for name in ("train", "val", "test"):
        for number in range(3):
            annotated.photo(root / name / "images" / f"{number}.jpg", 8, 8)
            annotated.mask(root / name / "masks" / f"{number}.png", np.full((8, 8), number % (2 + (name != "test"))))
    return {"source": "masks", "root": str(root)}


def write_yolo(root: Path) -> dict[str, Any]:
    for name in ("train", "val", "test"):
        annotated.photo(root / name / "images" / "0.jpg", 8, 8)
        (root / name / "labels").mkdir()
        (root / name / "labels" / "0.txt").write_text("1 .5 .5 .5 .5\n")
    splits = "".join(f"{name}: {name}/images\n" for name in ("train", "val", "test"))
    (root / "data.yaml").write_text(f"{splits}names: [cat, dog, emu]\n")
    return {"source": "yolo", "root": str(root)}


def write_coco(root: Path) -> dict[str, Any]:
    files = {}
    for name in ("train", "val", "test"):
        (root / name).mkdir(parents=True)
        box = {"bbox": [1, 1, 3, 3], "category_id": 7, "area": 9, "iscrowd": 0}
        files[name] = annotated.coco(str(root / name / "found.json"), [(8, 8)], [box])
    return {"source": "coco", **files}


ANIMALS = "cat", "dog", "emu"


def write_boxes(root: Path) -> dict[str, Any]:
    files = {}
    for name in ("train", "val", "test"):
        head, *lines = ["path,left,top,right,bottom,class"] + [f"{n}.jpg,1,1,4,4,{ANIMALS[n]}" for n in range(3)]
        for number in range(3):
            annotated.photo(root / name / f"{number}.jpg", 8, 8)
        (root / name / "boxes.csv").write_text("\n".join([head, *lines[name == "test" :]]))
        files[name] = str(root / name / "boxes.csv")
    return {"source": "boxes", **files}


def write_points(root: Path) -> dict[str, Any]:
    files = {}
    for name in ("train", "val", "test"):
        annotated.photo(root / name / "0.jpg", 8, 8)
        (root / name / "points.csv").write_text("path,x_nose,y_nose\n0.jpg,2,3\n")
        files[name] = str(root / name / "points.csv")
    return {"source": "points", **files, "flip_pairs": []}


def write_voc(root: Path) -> dict[str, Any]:
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "Annotations").mkdir()
    for number, name in enumerate(("train", "val", "test")):
        annotated.photo(root / "JPEGImages" / f"{number}.jpg", 8, 8)
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text(f"{number}\n")
        box = "".join(f"<{edge}>{at}</{edge}>" for edge, at in {"xmin": 1, "ymin": 1, "xmax": 4, "ymax": 4}.items())
        found = f"<object><name>cat</name><bndbox>{box}</bndbox></object>"
        size = "<size><width>8</width><height>8</height><depth>3</depth></size>"
        (root / "Annotations" / f"{number}.xml").write_text(f"<annotation>{size}{found}</annotation>")
    return {"source": "voc", "root": str(root), "test": "test"}


WRITERS = {
    "masks": write_masks,
    "yolo": write_yolo,
    "coco": write_coco,
    "boxes": write_boxes,
    "points": write_points,
    "voc": write_voc,
}


@pytest.mark.parametrize("source", WRITERS)
def test_sources_of_targets_in_the_image_have_a_test_split(source: str, own_folder: Path) -> None:
    found = parse_data(WRITERS[source](Path("set")))
    tested = load(found.with_test())
    assert len(tested.val) == {"masks": 3, "boxes": 2}.get(source, 1)
    assert source == "voc" or "test" in str(tested.val.files[0])
    assert not names(tested, "val") & names(load(found), "val")
    assert tested.classes == load(found).classes


def trained_on(found: Source) -> Any:
    """Return what `evaluated_split` needs to know about a model that was trained on a source."""
    dataset = load(found)
    named = SimpleNamespace(name=dataset.task, kind=dataset.kind, units="objects")
    return SimpleNamespace(config=SimpleNamespace(data=found), classes=dataset.classes, task=named)


@pytest.mark.parametrize("name", ["mine", "test"])
@pytest.mark.parametrize("source", WRITERS)
def test_a_folder_is_scored_without_the_training_data(source: str, name: str, own_folder: Path) -> None:
    found = parse_data(WRITERS[source](Path("set")))
    trained, tested = trained_on(found), load(found.with_test())
    folder = Path(name)
    if source == "voc":
        shutil.move("set", folder)
    else:
        shutil.move("set/test", folder)
        shutil.rmtree("set/train")
        shutil.rmtree("set/val")
    split = evaluated_split(trained, folder)
    assert len(split) == (3 if source == "voc" else len(tested.val))
    if source == "boxes":  # the folder has objects of two of the three classes
        assert [target.labels.tolist() for target in split.targets] == [[2], [3]]
    elif source == "masks":
        assert {target.classes for target in split.targets} == {3}
    elif source != "voc":
        assert [type(target) for target in split.targets] == [type(target) for target in tested.val.targets]


@pytest.mark.parametrize("source", [source for source in ALL if source not in ("folder", "numpy")])
def test_a_file_is_scored_without_the_training_data(source: str, own_folder: Path) -> None:
    found = parse_data(given(source, train=9, val=6, test=2))
    trained = trained_on(found)
    shutil.move(found.train, "gone")
    split = evaluated_split(trained, Path(found.test))
    assert split.targets == (0, 1)  # of three classes
    with pytest.raises(UserError, match=r"missing"):
        evaluated_split(trained, Path("missing.txt"))


@pytest.mark.parametrize(("source", "path"), [("numpy", "test.npy"), ("sample_boxes", "set"), ("masks", "nowhere")])
def test_paths_that_cannot_be_scored(source: str, path: str, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAIN", "VAL"):
        monkeypatch.setattr(f"augment.data.generated.annotated.{name}", 4)
    settings = {"source": source}
    if source == "sample_boxes":
        Path(path).mkdir()
    elif source == "numpy":
        settings = given("numpy", train=9, val=6, test=3)
    elif source == "masks":
        settings = write_masks(Path("set"))
    with pytest.raises(UserError, match=path) as caught:
        evaluated_split(trained_on(parse_data(settings)), Path(path))
    assert ("data=coco data.train=x.json for boxes" in str(caught.value)) == (source != "masks")


def test_the_settings_of_a_run_do_not_decide_where_a_folder_is_indexed(own_folder: Path) -> None:
    """A run folder may come from a stranger."""
    settings = given("webdataset", train=9, val=6, test=3)
    found = parse_data(settings | {"dir": "elsewhere"}).of_folder(Path(str(settings["test"])))
    assert found.dir == DATA_DIR


def test_a_missing_folder_is_named_by_sources_without_folders(tmp_path: Path) -> None:
    (tmp_path / "values.csv").touch()
    with pytest.raises(UserError, match=r"valeus\.csv: no such file or folder\. Did you mean .*values\.csv\?"):
        parse_data({"source": "sample_boxes"}).of_folder(tmp_path / "valeus.csv")
